{{/*
How many serving pods the Deployment asks for; nothing where an autoscaler has taken the number over.

Leaving `replicas` out where Helm alone has set it makes Kubernetes fall back to 1: so the first time the number that runs is
rendered. Rendering it where the autoscaler has set it is a conflict under server-side apply (Helm 4): so from then on it is
left out. Under client-side apply (releases of Helm 3) leaving it out would always fall back to 1: there the number that runs
is rendered each time. Without a cluster to ask nothing is rendered.
*/}}
{{- define "elastic-ctr.serving.replicas" -}}
{{- if not .Values.serving.autoscaling.enabled -}}
{{ int .Values.serving.replicas }}
{{- else -}}
{{- $live := lookup "apps/v1" "Deployment" .Release.Namespace (include "elastic-ctr.serving.fullname" .) }}
{{- if $live }}
{{- $applied := false }}
{{- $taken := false }}
{{- range $live.metadata.managedFields }}
{{- if and (eq .manager "helm") (eq .operation "Apply") }}{{ $applied = true }}{{ end }}
{{- if and (eq (.subresource | default "") "scale") (dig "fieldsV1" "f:spec" "f:replicas" false . | kindIs "map") }}{{ $taken = true }}{{ end }}
{{- end }}
{{- if not (and $applied $taken) }}{{ int $live.spec.replicas }}{{ end }}
{{- end }}
{{- end -}}
{{- end }}
