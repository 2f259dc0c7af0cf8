{{/* What the operator should know of this install or upgrade; each a paragraph */}}
{{- define "elastic-ctr.notes.warnings" -}}
{{- $values := .Values }}
{{- include "elastic-ctr.notes.training" . }}
{{- if and $values.fileServer.enabled (not (and $values.fileServer.persistence.enabled $values.fileServer.persistence.keep)) (not $values.fileServer.persistence.existingClaim) }}

NOTE: model versions go with {{ $values.fileServer.persistence.enabled | ternary "this release: `helm uninstall` deletes them" "the file-server's pod, which has no volume" }}. To keep them
set fileServer.persistence.enabled=true and fileServer.persistence.keep=true.
{{- end }}
{{- if not $values.networkPolicy.enabled }}

NOTE: networkPolicy.enabled=false: whoever reaches a pod of this release reaches its ports, those of the parameter servers
too.
{{- end }}
{{- if and (not (include "elastic-ctr.live" .)) (not $values.auth.existingSecret) }}

NOTE: this was rendered without a cluster, so the token is a new one. Set auth.existingSecret where charts are applied so.
{{- end }}
{{- end }}

{{/* An upgrade that begins another training: the master's file in the cluster names the one before */}}
{{- define "elastic-ctr.notes.training" -}}
{{- if and .Values.training.enabled .Release.IsUpgrade }}
{{- $training := include "elastic-ctr.training.fullname" . }}
{{- $pservers := int .Values.pserver.replicas }}
{{- $live := lookup "v1" "ConfigMap" .Release.Namespace (include "elastic-ctr.master.fullname" .) }}
{{- $before := dig "data" "master.config.yaml" "" $live | fromYaml }}
{{- if not $before.training }}

WARNING: where pserver.replicas, the data, the model, or pods of pservers and trainers have changed, training begins again from
the last checkpoint; where they have not, it goes on.
{{- else if ne $before.training $training }}

WARNING: {{ $before.training }} ends and {{ $training }} begins
{{- if ne (int $before.pservers) $pservers }}, because of {{ $pservers }} pservers in place of {{ int $before.pservers }}{{ end }}.
The old one saves once more and leaves; the new one waits for that, for {{ include "elastic-ctr.training.handoverSeconds" . }} s at most, and goes on from there. Where it cannot
save any more, what was trained since its last checkpoint is trained again. Predictions go on.
{{- end }}
{{- end }}
{{- end }}
