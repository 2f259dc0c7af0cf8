{{/* Checks of pods, as in _validate.tpl: settings that Kubernetes, or a starting role, would refuse half-way through an upgrade. */}}

{{/* Containers and volumes of the chart's own, as YAML by block: their names, and the paths where volumes are mounted; $ */}}
{{- define "elastic-ctr.validate.own" -}}
{{- $data := .Values.dataVolume.existingClaim | empty | ternary list (list "data") }}
{{- $stream := include "elastic-ctr.hasDataSecret" (list . "master") | empty | ternary $data (append $data "source") }}
{{- $topic := include "elastic-ctr.hasDataSecret" (list . "intake") | empty | ternary list (list "source") }}
{{- $bucket := .Values.bucketSecret.existingSecret | empty | ternary list (list "bucket") }}
{{- $kerberos := .Values.kerberos.existingSecret | empty | ternary list (list "kerberos") }}
{{- $role := concat (list "auth" "tmp") $bucket $kerberos }}
{{- $paths := concat (list "/etc/elastic-ctr/config" "/etc/elastic-ctr/auth" "/tmp") ($bucket | empty | ternary list (list .Values.bucketSecret.mountPath)) }}
{{- toYaml (dict
  "fileServer" (dict "containers" (list "file-server") "paths" (concat $paths (list "/run/elastic-ctr" "/data")) "volumes" (list "config" "auth" "run" "tmp" "data"))
  "master" (dict "containers" (list "master") "paths" (append $paths "/var/lib/elastic-ctr/master") "volumes" (concat $role (list "master-config" "state") $stream))
  "trainer" (dict "containers" (list "trainer") "paths" (append $paths "/var/lib/elastic-ctr/trainer") "volumes" (concat $role (list "trainer-config" "scratch") $stream))
  "pserver" (dict "containers" (list "pserver") "paths" (append $paths "/var/lib/elastic-ctr/pserver") "volumes" (concat $role (list "pserver-config" "scratch")))
  "cube" (dict "containers" (list "cube-server") "paths" (append $paths "/var/lib/elastic-ctr/cube") "volumes" (concat $role (list "cube-server-config" "cache")))
  "cubeTransfer" (dict "containers" (list "cube-transfer" "cube-builder") "paths" (concat $paths (list "/var/lib/elastic-ctr/cube-transfer" "/var/lib/elastic-ctr/cube-builder")) "volumes" (concat $role (list "cube-transfer-config" "cube-builder-config" "state" "scratch")))
  "intake" (dict "containers" (list "intake") "paths" (append $paths "/var/lib/elastic-ctr/intake") "volumes" (concat $role (list "intake-config" "log") $topic))
  "serving" (dict "containers" (list "serving") "paths" (append $paths "/var/lib/elastic-ctr/serving") "volumes" (concat $role (list "serving-config" "scratch")))
  "scoring" (dict "containers" (list "scoring") "paths" (append $paths "/var/lib/elastic-ctr/scoring") "volumes" (concat $role (list "scoring-config" "scratch") $data))
  "tracking" (dict "containers" (list "tracking") "paths" (list "/tmp" "/var/lib/elastic-ctr/tracking") "volumes" (list "tmp" "data"))) }}
{{- end }}

{{- define "elastic-ctr.validate.volumes" -}}
{{- range $name, $own := include "elastic-ctr.validate.own" . | fromYaml }}
{{- $block := get $.Values $name }}
{{- range $volume, $_ := $block.extraVolumes }}
{{- if has $volume $own.volumes -}}
{{ $name }}.extraVolumes.{{ $volume }} has the name of a volume that these pods have already: give it another name
{{ end }}
{{- end }}
{{- range $path, $mount := $block.extraVolumeMounts }}
{{- if not (or (has $mount.name $own.volumes) (hasKey ($block.extraVolumes | default dict) $mount.name)) -}}
{{ $name }}.extraVolumeMounts.{{ $path }} names the volume {{ $mount.name }}, which these pods do not have: add it to {{ $name }}.extraVolumes, or mend the name
{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.containers" -}}
{{- range $name, $own := include "elastic-ctr.validate.own" . | fromYaml }}
{{- $block := get $.Values $name }}
{{- $taken := $own.containers }}
{{- range $key := list "initContainers" "extraContainers" }}
{{- range $container, $given := get $block $key | default dict }}
{{- if has $container $taken -}}
{{ $name }}.{{ $key }}.{{ $container }} has the name of a container that these pods have already: give it another name
{{ end }}
{{- $taken = append $taken $container }}
{{- range $given.volumeMounts }}
{{- if not (or (has .name $own.volumes) (hasKey ($block.extraVolumes | default dict) .name)) -}}
{{ $name }}.{{ $key }}.{{ $container }} mounts the volume {{ .name }}, which these pods do not have: add it to {{ $name }}.extraVolumes, or mend the name
{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* No two mounts at one path */}}
{{- define "elastic-ctr.validate.mounts" -}}
{{- $said := list }}
{{- range $name, $own := include "elastic-ctr.validate.own" . | fromYaml }}
{{- $block := get $.Values $name }}
{{- $asked := list }}
{{- if and (has $name (list "master" "trainer" "scoring")) $.Values.dataVolume.existingClaim }}
{{- $asked = append $asked (list "dataVolume.mountPath" $.Values.dataVolume.mountPath) }}
{{- end }}
{{- if and (has $name (list "master" "trainer" "intake")) (include "elastic-ctr.hasDataSecret" (list $ $name)) }}
{{- $asked = append $asked (list "dataSecret.mountPath" $.Values.dataSecret.mountPath) }}
{{- end }}
{{- if has "kerberos" $own.volumes }}
{{- $asked = append $asked (list "kerberos.mountPath" $.Values.kerberos.mountPath) }}
{{- end }}
{{- range $path, $_ := $block.extraVolumeMounts }}
{{- $asked = append $asked (list (printf "%s.extraVolumeMounts" $name) $path) }}
{{- end }}
{{- $taken := dict }}
{{- range $own.paths }}
{{- $_ := set $taken . "a volume of the chart's own" }}
{{- end }}
{{- range $each := $asked }}
{{- $path := last . | trimSuffix "/" }}
{{- with get $taken $path }}
{{- $said = append $said (printf "%s %s is where these pods have %s: choose another path" (first $each) $path .) }}
{{- end }}
{{- $_ := set $taken $path (first $each) }}
{{- end }}
{{- end }}
{{- /* dataVolume, dataSecret and kerberos are in several kinds of pods. */}}
{{- uniq $said | join "\n" }}
{{- end }}

{{- define "elastic-ctr.validate.limits" -}}
{{- range $name, $_ := merge (dict "check" dict) (include "elastic-ctr.validate.own" . | fromYaml) }}
{{- range $key := list "resources" "builderResources" }}
{{- $given := get (get $.Values $name) $key | default dict | include "elastic-ctr.resources" | fromYaml }}
{{- range $resource, $limit := $given.limits }}
{{- $asked := dig "requests" $resource "" $given }}
{{- if and $asked (gt (include "elastic-ctr.amount" $asked | float64) (include "elastic-ctr.amount" $limit | float64)) -}}
{{ $name }}.{{ $key }} requests {{ $asked }} of {{ $resource }}, above its limit of {{ $limit }}, which Kubernetes refuses: lower the request or raise the limit
{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* A full disk takes no more clicks, and dropping the oldest needs room, too. */}}
{{- define "elastic-ctr.validate.intakeVolume" -}}
{{- $intake := .Values.intake }}
{{- if and $intake.enabled (not $intake.persistence.existingClaim) }}
{{- $key := $intake.persistence.enabled | ternary "size" "sizeLimit" }}
{{- $size := get $intake.persistence $key }}
{{- $impressions := .Values.data.stream.join | empty | ternary 0.0 (mulf 1.5 (float64 $intake.config.maxImpressionBytes)) }}
{{- if lt (include "elastic-ctr.amount" $size | float64) (addf (mulf 1.2 (float64 $intake.config.maxBytes)) $impressions) -}}
{{- if $impressions -}}
intake.persistence.{{ $key }} {{ $size }} is less than a fifth above intake.config.maxBytes {{ int64 $intake.config.maxBytes }} and a half above intake.config.maxImpressionBytes {{ int64 $intake.config.maxImpressionBytes }} together, so the disk would be full before the oldest go: raise the one or lower the others
{{- else -}}
intake.persistence.{{ $key }} {{ $size }} is less than a fifth above intake.config.maxBytes {{ int64 $intake.config.maxBytes }}, so the disk would be full before the oldest clicks go: raise the one or lower the other
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.preStop" -}}
{{- $stop := int .Values.serving.preStopSeconds }}
{{- $grace := int .Values.serving.terminationGracePeriodSeconds }}
{{- if and $stop (ge $stop $grace) -}}
serving.preStopSeconds {{ $stop }} leaves nothing of serving.terminationGracePeriodSeconds {{ $grace }}, so requests under way would be cut off: lower the one or raise the other
{{- end }}
{{- end }}
