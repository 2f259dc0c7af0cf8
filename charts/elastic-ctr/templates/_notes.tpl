{{/* Notes and warnings for the operator of this install or upgrade; a paragraph each */}}
{{- define "elastic-ctr.notes.warnings" -}}
{{- $values := .Values }}
{{- include "elastic-ctr.notes.training" . }}
{{- range $name, $what := dict "fileServer" "model versions" "master" "the records of the ledger" }}
{{- $block := get $values $name }}
{{- $runs := ternary $block.enabled $values.training.enabled (eq $name "fileServer") }}
{{- if and $runs (not $block.persistence.existingClaim) }}
{{- if not $block.persistence.enabled }}

NOTE: {{ $what }} are lost with the pod, which has no volume: set {{ $name }}.persistence.enabled=true to keep them.
{{- else if not $block.persistence.keep }}

NOTE: {{ $what }} are deleted with this release (`helm uninstall`): set {{ $name }}.persistence.keep=true to keep them.
{{- end }}
{{- end }}
{{- end }}
{{- if eq "docker.io" ($values.global.imageRegistry | default $values.image.registry) }}

NOTE: image.registry is docker.io, where this project has no images: set it to your registry, unless every node has the images already.
{{- end }}
{{- if not $values.networkPolicy.enabled }}

NOTE: networkPolicy.enabled=false: every pod of the cluster can reach all ports of this release. Pservers take no byte before the peer has
proved the release's secret; {{ if $values.training.tls.existingSecret }}their connections are encrypted{{ else }}who can read or change traffic between pods can still do so with theirs (training.tls){{ end }}.
{{- end }}
{{- end }}

{{/* Warns when an upgrade begins another training; the master's ConfigMap in the cluster names the previous one */}}
{{- define "elastic-ctr.notes.training" -}}
{{- if and .Values.training.enabled .Release.IsUpgrade }}
{{- $training := include "elastic-ctr.training.fullname" . }}
{{- $pservers := int .Values.pserver.replicas }}
{{- $live := lookup "v1" "ConfigMap" .Release.Namespace (include "elastic-ctr.master.fullname" .) }}
{{- $before := dig "data" "master.config.yaml" "" $live | fromYaml }}
{{- if not $before.training }}

WARNING: if pserver.replicas, data, model or the pods of pservers and trainers have changed, training continues from the last
checkpoint; otherwise it is not interrupted.
{{- else if ne $before.training $training }}

WARNING: {{ $before.training }} ends and {{ $training }} begins
{{- if ne (int $before.pservers) $pservers }}, with {{ $pservers }} pservers instead of {{ int $before.pservers }}{{ end }}.
The old training writes a checkpoint in mid pass and ends; the new one waits for it at most {{ include "elastic-ctr.training.handoverSeconds" . }} s and continues from there. If that
save fails, records trained since the last checkpoint are trained again. Predictions go on.
{{- end }}
{{- end }}
{{- end }}
