{{/* Fields of a Service; a block's `service`, without `type` for a headless one */}}
{{- define "elastic-ctr.service" -}}
{{- $type := .type | default "" }}
{{- $fields := pick . "type" "ipFamilyPolicy" "ipFamilies" }}
{{- if eq $type "LoadBalancer" }}
{{- $_ := set $fields "loadBalancerClass" .loadBalancerClass }}
{{- end }}
{{- if has $type (list "LoadBalancer" "NodePort") }}
{{- $_ := set $fields "externalTrafficPolicy" .externalTrafficPolicy }}
{{- end }}
{{- range $key, $value := $fields }}
{{- if $value }}
{{ $key }}: {{ toJson $value }}
{{- end }}
{{- end }}
{{- end }}
{{- define "elastic-ctr.service.nodePort" -}}
{{- if and .nodePort (ne .type "ClusterIP") }}
nodePort: {{ int .nodePort }}
{{- end }}
{{- end }}
