{{/*
How many serving pods the Deployment asks for; nothing where an autoscaler has taken the number over.

Leaving `replicas` out where the deployer alone has set it makes Kubernetes fall back to 1: so when the autoscaler is new the
number that runs is rendered. Rendering it where the autoscaler has set it is a conflict under server-side apply (Helm 4), so
from then on it is left out. Under client-side apply (releases of Helm 3) leaving it out always falls back to 1, and there
the number that runs goes on being rendered. Who has set what stands in managedFields; the deployer is whose entry has the
pod template. A new Deployment starts with one pod, and so does what renders without a cluster to ask.
*/}}
{{- define "elastic-ctr.serving.replicas" -}}
{{- $scaling := .Values.serving.autoscaling }}
{{- $name := include "elastic-ctr.serving.fullname" . }}
{{- $live := lookup "apps/v1" "Deployment" .Release.Namespace $name }}
{{- if not $scaling.enabled -}}
{{ int .Values.serving.replicas }}
{{- else if and $live (not (lookup "autoscaling/v2" "HorizontalPodAutoscaler" .Release.Namespace $name)) -}}
{{ int $live.spec.replicas }}
{{- else if $live -}}
{{- $clientSide := false }}
{{- $owners := list }}
{{- range $live.metadata.managedFields }}
{{- $spec := dig "fieldsV1" "f:spec" dict . }}
{{- $deployer := and (hasKey $spec "f:template") (not .subresource) }}
{{- if and $deployer (eq .operation "Update") }}{{ $clientSide = true }}{{ end }}
{{- if hasKey $spec "f:replicas" }}{{ $owners = append $owners (ternary "deployer" "autoscaler" $deployer) }}{{ end }}
{{- end }}
{{- if or $clientSide (and (has "deployer" $owners) (not (has "autoscaler" $owners))) }}{{ int $live.spec.replicas }}{{ end }}
{{- end -}}
{{- end }}
