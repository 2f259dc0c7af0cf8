{{/*
`replicas` of a Deployment or StatefulSet; empty where the autoscaler owns the field; root, kind, name (of the object and of its
autoscaler), block, replicas (those of the values).

| last writer of `replicas` | apply | rendered | because |
|---|---|---|---|
| Helm | any | the number that runs | without the field Kubernetes falls back to 1 |
| autoscaler | server-side (Helm 4) | nothing | a rendered number would be a conflict |
| autoscaler | client-side (Helm 3) | the number that runs | without the field Kubernetes falls back to 1 |

managedFields names the writers; Helm's entry is the one with the pod template. A new object, and a chart that is rendered without a
cluster, starts with one pod.
*/}}
{{- define "elastic-ctr.replicas" -}}
{{- $namespace := .root.Release.Namespace }}
{{- $live := lookup "apps/v1" .kind $namespace .name }}
{{- if not .block.autoscaling.enabled -}}
{{ int .replicas }}
{{- else if and $live (not (lookup "autoscaling/v2" "HorizontalPodAutoscaler" $namespace .name)) -}}
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
