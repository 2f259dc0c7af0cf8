{{/* Checks of pods, as in _validate.tpl: settings that Kubernetes, or a starting role, would refuse half-way through an upgrade. */}}

{{/*
Volumes of the chart's own, as YAML by block: their names, the paths where they are mounted, and the keys of `config` with
such paths; $
*/}}
{{- define "elastic-ctr.validate.own" -}}
{{- $data := .Values.dataVolume.existingClaim | empty | ternary list (list "data") }}
{{- $stream := include "elastic-ctr.hasDataSecret" (list . "master") | empty | ternary $data (append $data "source") }}
{{- $topic := include "elastic-ctr.hasDataSecret" (list . "intake") | empty | ternary list (list "source") }}
{{- $role := list "auth" "tmp" }}
{{- $paths := list "/etc/elastic-ctr/config" "/etc/elastic-ctr/auth" "/tmp" }}
{{- toYaml (dict
  "fileServer" (dict "keys" list "paths" (concat $paths (list "/run/elastic-ctr" "/data")) "volumes" (list "config" "auth" "run" "tmp" "data"))
  "master" (dict "keys" (list "stateDir") "paths" $paths "volumes" (concat $role (list "master-config" "state") $stream))
  "trainer" (dict "keys" (list "scratchDir") "paths" $paths "volumes" (concat $role (list "trainer-config" "scratch") $stream))
  "pserver" (dict "keys" (list "scratchDir") "paths" $paths "volumes" (concat $role (list "pserver-config" "scratch")))
  "cube" (dict "keys" (list "cacheDir") "paths" $paths "volumes" (concat $role (list "cube-server-config" "cube-agent-config" "cache")))
  "cubeTransfer" (dict "keys" (list "stateDir" "scratchDir") "paths" $paths "volumes" (concat $role (list "cube-transfer-config" "cube-builder-config" "state" "scratch")))
  "intake" (dict "keys" (list "dir") "paths" $paths "volumes" (concat $role (list "intake-config" "log") $topic))
  "serving" (dict "keys" (list "scratchDir") "paths" $paths "volumes" (concat $role (list "serving-config" "scratch")))
  "scoring" (dict "keys" (list "scratchDir") "paths" $paths "volumes" (concat $role (list "scoring-config" "scratch") $data))
  "tracking" (dict "keys" list "paths" (list "/tmp" "/var/lib/elastic-ctr/tracking") "volumes" (list "tmp" "data"))) }}
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

{{/* No two mounts at one path */}}
{{- define "elastic-ctr.validate.mounts" -}}
{{- $said := list }}
{{- range $name, $own := include "elastic-ctr.validate.own" . | fromYaml }}
{{- $block := get $.Values $name }}
{{- $asked := list }}
{{- range $own.keys }}
{{- $asked = append $asked (list (printf "%s.config.%s" $name .) (get $block.config .)) }}
{{- end }}
{{- if and (has $name (list "master" "trainer" "scoring")) $.Values.dataVolume.existingClaim }}
{{- $asked = append $asked (list "dataVolume.mountPath" $.Values.dataVolume.mountPath) }}
{{- end }}
{{- if and (has $name (list "master" "trainer" "intake")) (include "elastic-ctr.hasDataSecret" (list $ $name)) }}
{{- $asked = append $asked (list "dataSecret.mountPath" $.Values.dataSecret.mountPath) }}
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
{{- /* dataVolume and dataSecret are in two kinds of pods. */}}
{{- uniq $said | join "\n" }}
{{- end }}

{{- define "elastic-ctr.validate.limits" -}}
{{- range $name, $_ := include "elastic-ctr.validate.own" . | fromYaml }}
{{- range $key := list "resources" "agentResources" "builderResources" }}
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

{{- define "elastic-ctr.validate.dates" -}}
{{- range $key := list "start" "end" }}
{{- with get $.Values.data $key | default "" | regexFind "^[0-9].*" }}
{{- /* Noon exists in every time zone on every day. */}}
{{- $noon := printf "%s12" (substr 0 8 .) }}
{{- if ne $noon (toDate "2006010215" $noon | date "2006010215") -}}
data.{{ $key }} {{ . }} is a day that no calendar has: name one that there is
{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{/* data.slots, a list or a text with one a line, as a JSON list of texts; blank lines stay */}}
{{- define "elastic-ctr.slots" -}}
{{- $slots := .Values.data.slots }}
{{- if kindIs "string" $slots }}
{{- $slots = splitList "\n" $slots }}
{{- end }}
{{- $names := list }}
{{- range $slots }}
{{- $names = append $names (toString . | trim) }}
{{- end }}
{{- toJson $names }}
{{- end }}

{{- define "elastic-ctr.validate.slots" -}}
{{- $slots := include "elastic-ctr.slots" . | fromJsonArray }}
{{- $seen := dict }}
{{- range $slot := $slots }}
{{- $again := hasKey $seen $slot }}
{{- if $slot }}
{{- $_ := set $seen $slot true }}
{{- end }}
{{- if $again -}}
data.slots names {{ $slot }} more than once: name each slot once
{{ break }}
{{- else if and $slot (not (regexMatch "^[!-9;-~]+$" $slot)) -}}
data.slots names {{ quote $slot }}, which cannot stand in a line of logs: use printable ASCII without blank or colon
{{ break }}
{{- end }}
{{- end }}
{{- if and $slots (not $seen) -}}
data.slots has blank lines alone: name at least one slot
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.group" -}}
{{- include "elastic-ctr.validate.hasKeys" (dict "root" . "setting" "data.group" "name" .Values.data.group) }}
{{- end }}

{{- define "elastic-ctr.validate.canary" -}}
{{- $canary := .Values.serving.config.canary | default dict }}
{{- include "elastic-ctr.validate.hasKeys" (dict "root" . "setting" "serving.config.canary.feature" "name" $canary.feature) }}
{{- if and $canary.share (not (and .Values.serving.enabled .Values.cubeTransfer.enabled)) -}}
serving.config.canary.share {{ $canary.share }} needs serving and cube-transfer in one release: the one answers with the candidate while the other waits; set it to 0, or enable both
{{ end }}
{{- end }}

{{/* root, setting, name: of a slot or feature */}}
{{- define "elastic-ctr.validate.hasKeys" -}}
{{- $values := .root.Values }}
{{- if not (or (kindIs "invalid" .name) (eq (toString .name) "")) }}
{{- $name := toString .name }}
{{- if $values.features }}
{{- if not (has (get $values.features $name | default dict).type (list "categorical" "bucketized" "crossed" "text")) -}}
{{ .setting }} {{ quote $name }} is no feature with keys: name one that is categorical, bucketized, crossed or text
{{ end }}
{{- else if $values.data.slots }}
{{- if not (has $name (include "elastic-ctr.slots" .root | fromJsonArray)) -}}
{{ .setting }} {{ quote $name }} is no slot of data.slots: name one of them
{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.weightBounds" -}}
{{- range $block := list "embed" "embedx" }}
{{- with (get ($.Values.model.table | default dict) $block | default dict).weightBounds }}
{{- if ge (first . | float64) (last . | float64) -}}
model.table.{{ $block }}.weightBounds [{{ first . }}, {{ last . }}] leave no room between them: give a lower and a higher number
{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.embedxThreshold" -}}
{{- with $.Values.model.table | default dict }}
{{- if and (gt (.embedxThreshold | default 0 | float64) 0.0) (lt (dig "showClickDecayRate" 0.98 . | float64) 1.0) -}}
model.table.embedxThreshold {{ .embedxThreshold }} needs model.table.showClickDecayRate 1: the parameter server saves a key without its vector while its score is below embedxThreshold, and scores decay at day end; set showClickDecayRate to 1 or embedxThreshold to 0
{{- end }}
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.softmax" -}}
{{- $name := include "elastic-ctr.networkName" . }}
{{- if and (has $name (list "lr" "fm")) (eq .Values.model.output "softmax") -}}
model.output softmax is that of fully connected layers, which {{ $name }} has none of; set model.output to sigmoid
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.ownNetwork" -}}
{{- if eq (include "elastic-ctr.networkName" .) "own" }}
{{- $network := .Values.model.network }}
{{- if and $network.file $network.source -}}
model.network has a source and a file: leave one of them out
{{- else if $network.file -}}
model.network.file {{ $network.file }} is read by `elastic-ctr` alone, a chart cannot read it: leave it out and give its text, --set-file model.network.source={{ $network.file }}
{{- else if eq .Values.model.output "softmax" -}}
model.output softmax is that of the output layers of networks that are built in, and a network of your own returns the logit itself: set model.output to sigmoid
{{- end }}
{{- end }}
{{- end }}

{{/* The network by name, whether model.network is a name or a map; "own" for one of the user's own; $ */}}
{{- define "elastic-ctr.networkName" -}}
{{- $network := .Values.model.network }}
{{- if kindIs "map" $network }}
{{- $network = or (hasKey $network "source") (hasKey $network "file") | ternary "own" $network.name }}
{{- end }}
{{- $network | default "slot-dnn" }}
{{- end }}

{{- define "elastic-ctr.validate.heads" -}}
{{- if eq (include "elastic-ctr.networkName" .) "final-mlp" }}
{{- $given := kindIs "map" .Values.model.network | ternary .Values.model.network dict }}
{{- $heads := $given.heads | default 8 | int }}
{{- $streams := dict "layers" ($given.layers | default (list 400)) "secondLayers" ($given.secondLayers | default (list 400)) }}
{{- range $key, $widths := $streams }}
{{- $width := last $widths | int }}
{{- if mod $width $heads -}}
model.network.heads {{ $heads }} does not divide {{ $width }}, the last width of {{ $key }}; set model.network.heads to a divisor of it
{{ end }}
{{- end }}
{{- end }}
{{- end }}
