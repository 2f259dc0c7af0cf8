{{/* Fields of a Service; a block's `service` */}}
{{- define "elastic-ctr.service.annotations" -}}
{{- with .annotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- define "elastic-ctr.service.nodePort" -}}
{{- if and .nodePort (ne .type "ClusterIP") }}
nodePort: {{ int .nodePort }}
{{- end }}
{{- end }}
