{{/* Each check gives nothing, or a sentence with the keys, the reason and the way out. */}}

{{- define "elastic-ctr.validate.name" -}}
{{- $name := include "elastic-ctr.fullname" . }}
{{- if gt (len $name) 34 -}}
the name {{ $name }} has {{ len $name }} characters, and names of pods, which are made of it, would be longer than Kubernetes takes: set fullnameOverride to at most 34, or choose a shorter release name
{{- else if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
the name {{ $name }} cannot begin the names of Services, which are small letters, digits and hyphens and begin with a letter: set fullnameOverride to such a name, or choose another release name
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.volcano" -}}
{{- $needed := and .Values.training.enabled (eq .Values.training.scheduler "volcano") (include "elastic-ctr.live" .) }}
{{- if and $needed (not (.Capabilities.APIVersions.Has "batch.volcano.sh/v1alpha1")) -}}
training.scheduler=volcano needs Volcano's Job (batch.volcano.sh/v1alpha1), which this cluster does not know: install Volcano or set training.scheduler=none
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.prometheus" -}}
{{- if and (include "elastic-ctr.live" .) (not (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")) }}
{{- range list "serviceMonitor" "prometheusRule" }}
{{- if (get $.Values.metrics .).enabled -}}
metrics.{{ . }}.enabled needs the kinds of monitoring.coreos.com/v1, which this cluster does not know: install Prometheus' operator or set metrics.{{ . }}.enabled=false
{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.alerts" -}}
{{- $known := dict }}
{{- range (include "elastic-ctr.alerts" . | fromYaml).groups }}
{{- range .rules }}
{{- $_ := set $known .alert (hasKey . "threshold") }}
{{- end }}
{{- end }}
{{- range $name, $own := .Values.metrics.prometheusRule.alerts }}
{{- if not (hasKey $known $name) -}}
metrics.prometheusRule.alerts has {{ $name }}, which is no alert: there are {{ keys $known | sortAlpha | join ", " }}
{{ else if and (hasKey ($own | default dict) "threshold") (not (get $known $name)) -}}
metrics.prometheusRule.alerts.{{ $name }}.threshold is set, and this alert compares nothing with a threshold: leave it out
{{ end }}
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.trainers" -}}
{{- $trainer := .Values.trainer }}
{{- if lt (int $trainer.replicas) (int $trainer.minReplicas) -}}
trainer.replicas {{ int $trainer.replicas }} is below trainer.minReplicas {{ int $trainer.minReplicas }}, without which none starts: raise the one or lower the other
{{- end }}
{{- end }}

{{/* A Secret that is there; without a cluster, and for one that comes later, the pods say it */}}
{{- define "elastic-ctr.validate.auth" -}}
{{- $name := .Values.auth.existingSecret }}
{{- $secret := dict }}
{{- if $name }}
{{- $secret = lookup "v1" "Secret" .Release.Namespace $name }}
{{- end }}
{{- if $secret }}
{{- $absent := list }}
{{- range concat (list "internal" "operate") ($.Values.intake.enabled | ternary (list "clicks") list) }}
{{- if not (hasKey ($secret.data | default dict) .) }}
{{- $absent = append $absent . }}
{{- end }}
{{- end }}
{{- if $absent -}}
auth.existingSecret {{ $name }} has no key {{ join " and no key " $absent }}: there are three rights instead of one token; add the keys clicks, operate and internal, each with a line `name token`, as docs/operations/tokens.md describes
{{- end }}
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.tokenFile" -}}
{{- $source := .Values.data.source }}
{{- if and $source.tokenFile (not (hasPrefix "intake://" $source.url)) -}}
data.source.tokenFile is of an intake, and data.source.url {{ $source.url }} is no address of one: leave it out
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.shards" -}}
{{- if gt (int .Values.cube.config.shards) (int .Values.model.partitions) -}}
cube.config.shards {{ int .Values.cube.config.shards }} is above model.partitions {{ int .Values.model.partitions }}, so some shards would hold nothing: lower shards; partitions are fixed for a model's life
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.pservers" -}}
{{- if gt (int .Values.pserver.replicas) (int .Values.model.partitions) -}}
pserver.replicas {{ int .Values.pserver.replicas }} is above model.partitions {{ int .Values.model.partitions }}, so some pservers would own nothing: lower replicas; partitions are fixed for a model's life
{{- else if gt (int .Values.pserver.replicas) 0 -}}
{{- /* Paddle gives every pserver the same number of partitions until none is left. */}}
{{- $partitions := int .Values.model.partitions }}
{{- $each := div (sub (add $partitions (int .Values.pserver.replicas)) 1) (int .Values.pserver.replicas) }}
{{- $used := div (sub (add $partitions $each) 1) $each }}
{{- if lt $used (int .Values.pserver.replicas) -}}
pserver.replicas {{ int .Values.pserver.replicas }} would leave some without any of {{ $partitions }} model.partitions, {{ $each }} for each of the first {{ $used }}: set it to {{ $used }}; partitions are fixed for a model's life
{{- end }}
{{- end }}
{{- end }}

{{/* A split as twelve digits, so that it can be compared */}}
{{- define "elastic-ctr.split" -}}
{{- $digits := replace "/" "" . -}}
{{ $digits }}{{ repeat (int (sub 12 (len $digits))) "0" }}
{{- end }}

{{/* Whether the clicks are a stream: true, or nothing; $ */}}
{{- define "elastic-ctr.streams" -}}
{{- $url := .Values.data.source.url }}
{{- if or (hasPrefix "kafka://" $url) (hasPrefix "intake://" $url) (hasSuffix "?follow" $url) }}true{{ end }}
{{- end }}

{{- define "elastic-ctr.validate.stream" -}}
{{- $data := .Values.data }}
{{- $starts := list "earliest" "latest" }}
{{- if include "elastic-ctr.streams" . }}
{{- if or (not (has $data.start $starts)) $data.end -}}
data.source.url {{ $data.source.url }} is a stream: data.start is earliest or latest, and data.end is left out
{{- else if not (has $data.format (list "clicks" "csv" "tsv" "jsonl")) -}}
data.format {{ $data.format }} is of whole files: a stream has clicks, csv, tsv or jsonl
{{- else if and (has $data.format (list "csv" "tsv")) (not $data.columns) -}}
data.columns is missing: no line of a stream names its columns, so list them
{{- else if and $data.stream.join (hasPrefix "file://" $data.source.url) -}}
data.stream.join is of a topic or an intake, and data.source.url {{ $data.source.url }} is neither: leave it out
{{- else if and $data.stream.join (not $data.stream.lateClicks) -}}
data.stream.join makes late clicks: set data.stream.lateClicks=true, or leave data.stream.join out
{{- else if and $data.stream.join (eq $data.format "clicks") -}}
data.stream.join is of rows with a column for the key: set data.format to jsonl, csv or tsv, for lines of clicks have none
{{- else if and $data.stream.join (has $data.stream.join.key (list $data.label $data.shows)) -}}
data.stream.join.key {{ $data.stream.join.key }} says what was clicked: name the column with the impression's id
{{- else if and $data.stream.join $data.columns (not (has $data.stream.join.key $data.columns)) -}}
data.stream.join.key {{ $data.stream.join.key }} is not among data.columns: name one of {{ join ", " $data.columns }}
{{- else if and $data.stream.lateClicks (ne $data.format "clicks") (not $data.shows) -}}
data.stream.lateClicks needs data.shows: a row without it is one impression, so name the column of impressions
{{- else if $data.stream.lateClicks }}
{{- range $block := list "embed" "embedx" }}
{{- $rule := (get $.Values.model.table $block).name }}
{{- if contains "adagrad" $rule -}}
data.stream.lateClicks does not go with model.table.{{ $block }}.name {{ $rule }}, which divides by the shows of a line: take adam, shared_adam or naive
{{ break }}
{{- end }}
{{- end }}
{{- end }}
{{- else if $data.stream.join -}}
data.stream.join is of streams, and data.source.url {{ $data.source.url }} is none: leave it out
{{- else if $data.stream.lateClicks -}}
data.stream.lateClicks is of streams, and data.source.url {{ $data.source.url }} is none: leave it out
{{- else if or (has $data.start $starts) (has ($data.end | default "") $starts) -}}
data.start {{ $data.start }} is of streams, and data.source.url {{ $data.source.url }} is none: name a folder, YYYYMMDD/HH
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.source" -}}
{{- $url := .Values.data.source.url }}
{{- if regexMatch "^file:[^/]" $url -}}
data.source.url {{ $url }} is the folder of a values file, and a cluster has none: give hdfs://namenode:9000, or file:///some/dir of a mounted volume, dataVolume
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.kafka" -}}
{{- $source := .Values.data.source }}
{{- $kafka := $source.kafka | default dict }}
{{- $files := list }}
{{- range list "caFile" "certFile" "keyFile" "usernameFile" "passwordFile" }}
{{- if get $kafka . }}
{{- $files = append $files . }}
{{- end }}
{{- end }}
{{- if regexMatch "^kafka://.*@" $source.url -}}
data.source.url has credentials in it: leave them out, put them into a Secret, and name its files by data.source.kafka.usernameFile and data.source.kafka.passwordFile
{{- else if regexMatch "^kafka://.*[?#]" $source.url -}}
data.source.url has a query, which no broker is told: leave it out, and give TLS and SASL by data.source.kafka
{{- else if and (or $kafka.tls $kafka.saslMechanism $files) (not (hasPrefix "kafka://" $source.url)) -}}
data.source.kafka is of brokers, and data.source.url {{ $source.url }} is no address of them: leave it out
{{- else if and (not $kafka.tls) (or $kafka.caFile $kafka.certFile $kafka.keyFile) -}}
data.source.kafka.{{ first $files }} is of TLS: set data.source.kafka.tls=true, or leave it out
{{- else if ne (empty $kafka.certFile) (empty $kafka.keyFile) -}}
data.source.kafka.certFile goes with data.source.kafka.keyFile: give both, or neither
{{- else if and (not $kafka.saslMechanism) (or $kafka.usernameFile $kafka.passwordFile) -}}
data.source.kafka.{{ last $files }} is of SASL: give data.source.kafka.saslMechanism, or leave it out
{{- else if and $kafka.saslMechanism (not (and $kafka.usernameFile $kafka.passwordFile)) -}}
data.source.kafka.saslMechanism {{ $kafka.saslMechanism }} needs usernameFile and passwordFile, mounted files with the credentials: give both
{{- else if and (or .Values.training.enabled .Values.intake.enabled) $files (not .Values.dataSecret.existingSecret) }}
{{- range .Values.intake.enabled | ternary (list "intake") (list "master" "trainer") }}
{{- if not (get $.Values .).extraVolumeMounts -}}
data.source.kafka.{{ first $files }} is a file that no pod has: set dataSecret.existingSecret to a Secret with it, or mount it into {{ $.Values.intake.enabled | ternary "intake" "master and trainer" }} by extraVolumes and extraVolumeMounts
{{ break }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.intake" -}}
{{- $url := .Values.data.source.url }}
{{- if and (eq $url "intake://") (not .Values.intake.enabled) -}}
data.source.url is intake://, the intake of this release, which is off: set intake.enabled=true, or give the address of another one as intake://host:port
{{- else if and (hasPrefix "kafka://" $url) .Values.data.stream.join (not .Values.intake.enabled) -}}
data.stream.join is done by the intake, which is off: set intake.enabled=true, and it reads the topic, or leave data.stream.join out
{{- else if and (hasPrefix "kafka://" $url) .Values.intake.enabled .Values.data.stream.join (not .Values.intake.persistence.enabled) (not .Values.intake.persistence.existingClaim) -}}
intake.persistence.enabled is false, and the intake reads a topic: each new pod would read it from data.start on, and clicks would be trained again: set it to true
{{- else if and (hasPrefix "kafka://" $url) .Values.intake.enabled .Values.data.stream.join (not .Values.training.enabled) -}}
training.enabled is false, and the intake reads a topic: its log keeps what this release's training has not read, and would be full one day: set it to true, and let other releases read this intake
{{- else if and .Values.intake.enabled (ne $url "intake://") (not (and (hasPrefix "kafka://" $url) .Values.data.stream.join)) -}}
intake.enabled is true, and data.source.url is {{ $url }}, so nothing would read the clicks: set data.source.url to intake://, or intake.enabled=false
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.days" -}}
{{- $data := .Values.data }}
{{- if and $data.end (not (include "elastic-ctr.validate.stream" .)) }}
{{- if gt (include "elastic-ctr.split" $data.start) (include "elastic-ctr.split" $data.end) -}}
data.end {{ $data.end }} is before data.start {{ $data.start }}, so there is nothing to train: swap them, or leave data.end out to follow new hours
{{- end }}
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.grid" -}}
{{- if not (or (include "elastic-ctr.streams" .) (include "elastic-ctr.validate.stream" .)) }}
{{- $interval := int .Values.data.splitInterval }}
{{- range $key := list "start" "end" }}
{{- with get $.Values.data $key }}
{{- $digits := include "elastic-ctr.split" . }}
{{- $minute := add (mul 60 (substr 8 10 $digits | trimPrefix "0" | int)) (substr 10 12 $digits | trimPrefix "0" | int) }}
{{- if mod $minute $interval -}}
data.{{ $key }} {{ . }} is not on the grid of data.splitInterval {{ $interval }}, which begins at midnight: name a folder that such an interval has
{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.logs" -}}
{{- $values := .Values }}
{{- if and $values.training.enabled (hasPrefix "file://" $values.data.source.url) (not $values.dataVolume.existingClaim) }}
{{- if not (and $values.master.extraVolumeMounts $values.trainer.extraVolumeMounts) -}}
data.source.url {{ $values.data.source.url }} is a folder of a machine, and no pod has it: set dataVolume.existingClaim to a volume with the logs, or mount one into master and trainer by extraVolumes and extraVolumeMounts
{{- end }}
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.store" -}}
{{- if and (not .Values.fileServer.enabled) (not .Values.store.config.url) -}}
fileServer.enabled=false leaves no place for model versions: set store.config.url to a store, or fileServer.enabled=true
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.storeInPods" -}}
{{- $values := .Values }}
{{- if hasPrefix "file://" ($values.store.config.url | default "") }}
{{- range concat (list "master" "trainer" "pserver" "cube" "cubeTransfer" "serving") (ternary (list "scoring") list $values.scoring.enabled) }}
{{- if not (get $values .).extraVolumeMounts -}}
store.config.url {{ $values.store.config.url }} must be one place for all roles, and {{ . }} has no volume for it: leave url out for the release's own file-server, or mount one volume into every role by extraVolumes and extraVolumeMounts
{{ break }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.startFromStore" -}}
{{- $url := (.Values.model.startFrom | default dict).store | default "" }}
{{- if and .Values.training.enabled (hasPrefix "file://" $url) (not .Values.master.extraVolumeMounts) -}}
model.startFrom.store {{ $url }} is a folder of a machine, and the master has no volume for it: leave store out for this model's own, give an address of HTTP or HDFS, or mount a volume into master by extraVolumes and extraVolumeMounts
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.serving" -}}
{{- $values := .Values }}
{{- if and $values.serving.enabled (not $values.cube.enabled) $values.cubeTransfer.enabled -}}
serving.enabled needs a cube: set cube.enabled=true, or cubeTransfer.enabled=false and cubeTransfer.address to that of a cube already running
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.transfer" -}}
{{- $values := .Values }}
{{- if and (or $values.serving.enabled $values.cube.enabled) (not $values.cubeTransfer.enabled) (not $values.cubeTransfer.address) -}}
cubeTransfer.enabled=false leaves cube and serving without a release document: set cubeTransfer.address to one already running, or cubeTransfer.enabled=true
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.ready" -}}
{{- $wanted := int .Values.cubeTransfer.config.minReadyReplicas }}
{{- if and .Values.cube.enabled .Values.cubeTransfer.enabled (gt $wanted (int .Values.cube.replicasPerShard)) -}}
cubeTransfer.config.minReadyReplicas {{ $wanted }} is above cube.replicasPerShard {{ int .Values.cube.replicasPerShard }}, so no version would ever go live: lower the one or raise the other
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.ingress" -}}
{{- $ingress := .Values.serving.ingress }}
{{- if and $ingress.enabled (not $ingress.host) -}}
serving.ingress.enabled without serving.ingress.host would take every name that reaches the cluster: set serving.ingress.host to the name that clients ask for
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.autoscaling" -}}
{{- $scaling := .Values.serving.autoscaling }}
{{- if and $scaling.enabled (gt (int $scaling.minReplicas) (int $scaling.maxReplicas)) -}}
serving.autoscaling.minReplicas {{ int $scaling.minReplicas }} is above serving.autoscaling.maxReplicas {{ int $scaling.maxReplicas }}: lower the one or raise the other
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.autoscalingNeedsCpu" -}}
{{- $resources := include "elastic-ctr.resources" .Values.serving.resources | fromYaml }}
{{- if and .Values.serving.autoscaling.enabled (not (dig "requests" "cpu" "" $resources)) -}}
serving.autoscaling.enabled measures use of CPU by what is requested, and serving.resources requests none: set serving.resources.cpu
{{- end }}
{{- end }}

{{/* Containers of one pod share its ports. */}}
{{- define "elastic-ctr.validate.ports" -}}
{{- $pods := dict
  "master" (list "port" "statusPort")
  "pserver" (list "port" "adminPort")
  "cube" (list "port" "adminPort" "agentPort")
  "cubeTransfer" (list "port" "builderPort")
  "serving" (list "port" "adminPort" "grpcPort") }}
{{- range $block, $keys := $pods }}
{{- $taken := dict }}
{{- range $key := $keys }}
{{- $port := get (get $.Values $block).config $key | int | toString }}
{{- /* Port 0 is off. */}}
{{- with ternary "" (get $taken $port) (eq $port "0") -}}
{{ $block }}.config.{{ $key }} and {{ $block }}.config.{{ . }} are both {{ $port }}, in one pod: set one of them elsewhere
{{ end }}
{{- $_ := set $taken $port $key }}
{{- end }}
{{- end }}
{{- end }}
