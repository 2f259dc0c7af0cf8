{{/*
The role files, which python/elastic_ctr/config/role_files.py loads. Every number goes through toYaml, which keeps integers
whole (1000001, never 1.000001e+06).
*/}}

{{/* A map without its nulls: the program's default applies to a setting that is null */}}
{{- define "elastic-ctr.given" -}}
{{- $kept := dict }}
{{- include "elastic-ctr.keepGiven" (dict "given" . "kept" $kept) }}
{{- toYaml $kept }}
{{- end }}

{{/* Puts what is not null of the map `given` into the map `kept` */}}
{{- define "elastic-ctr.keepGiven" -}}
{{- $kept := .kept }}
{{- range $key, $value := .given }}
{{- if kindIs "map" $value }}
{{- $inner := dict }}
{{- include "elastic-ctr.keepGiven" (dict "given" $value "kept" $inner) }}
{{- $_ := set $kept $key $inner }}
{{- else if not (kindIs "invalid" $value) }}
{{- $_ := set $kept $key $value }}
{{- end }}
{{- end }}
{{- end }}

{{/* The program's half of the values, which `elastic-ctr check values` reads; $ */}}
{{- define "elastic-ctr.config.values" -}}
{{- $values := pick .Values "data" "features" "statistics" "model" "restore" "local" }}
{{- range list "store" "master" "trainer" "pserver" "cube" "cubeTransfer" "intake" "serving" "scoring" }}
{{- $_ := set $values . (pick (get $.Values .) "config" "enabled" "replicas" "minReplicas" "replicasPerShard") }}
{{- end }}
{{- include "elastic-ctr.given" $values }}
{{- end }}

{{/* The rights whose tokens roles need, which role_files.py names as well; a list of roles */}}
{{- define "elastic-ctr.auth.rights" -}}
{{- $rights := list "internal" }}
{{- if has "intake" . }}
{{- $rights = append $rights "clicks" }}
{{- end }}
{{- if or (has "master" .) (has "cube-transfer" .) }}
{{- $rights = append $rights "operate" }}
{{- end }}
{{- toJson $rights }}
{{- end }}

{{/* A role */}}
{{- define "elastic-ctr.config.common" -}}
# Every address, of IPv4 and IPv6.
host: "::"
auth:
{{- range include "elastic-ctr.auth.rights" (list .) | fromJsonArray }}
  {{ . }}File: /etc/elastic-ctr/auth/{{ . }}
{{- end }}
{{- end }}

{{- define "elastic-ctr.config.store" -}}
{{- $own := dict }}
{{- if not .Values.store.config.url }}
{{- $own = dict "url" (printf "http://%s:%v" (include "elastic-ctr.file-server.fullname" .) (int .Values.fileServer.service.port)) }}
{{- end }}
{{- include "elastic-ctr.given" (merge $own (omit .Values.store.config "archive")) }}
{{- end }}

{{/* cube.config without shards, so that pods and readers do not depend on their number */}}
{{- define "elastic-ctr.config.cube" -}}
{{- $config := omit .Values.cube.config "shards" }}
{{- if not $config.workers }}
{{- $config = set $config "workers" (include "elastic-ctr.cores" .Values.cube.resources | int) }}
{{- end }}
{{- include "elastic-ctr.given" $config }}
{{- end }}

{{- define "elastic-ctr.masterAddress" -}}
{{ include "elastic-ctr.master.fullname" . }}:{{ int .Values.master.config.port }}
{{- end }}

{{- define "elastic-ctr.transferAddress" -}}
{{- if .Values.cubeTransfer.enabled -}}
{{ include "elastic-ctr.cube-transfer.fullname" . }}:{{ int .Values.cubeTransfer.config.port }}
{{- else -}}
{{ .Values.cubeTransfer.address }}
{{- end -}}
{{- end }}

{{/* cube-builder's port, inside the pod of cube-transfer; $ */}}
{{- define "elastic-ctr.builderPort" -}}
{{ add1 (int .Values.cubeTransfer.config.port) }}
{{- end }}

{{/* Settings of cube-transfer and cube-builder, as YAML; $ */}}
{{- define "elastic-ctr.config.cubeTransfer" -}}
{{- include "elastic-ctr.given" (merge (dict "builderPort" (include "elastic-ctr.builderPort" . | int)) .Values.cubeTransfer.config) }}
{{- end }}

{{/* DNS domain of a headless Service's pods; root, service */}}
{{- define "elastic-ctr.podDomain" -}}
{{ .service }}.{{ .root.Release.Namespace }}.svc.{{ .root.Values.clusterDomain }}
{{- end }}

{{- define "elastic-ctr.intakeAddress" -}}
{{ include "elastic-ctr.intake.fullname" . }}:{{ int .Values.intake.config.port }}
{{- end }}

{{/* data as training reads it: where the release has an intake, from there; $ */}}
{{- define "elastic-ctr.config.data" -}}
{{- $data := .Values.data }}
{{- if .Values.intake.enabled }}
{{- $source := merge (dict "url" (printf "intake://%s" (include "elastic-ctr.intakeAddress" .)) "tokenFile" "/etc/elastic-ctr/auth/internal") (omit $data.source "kafka") }}
{{- $data = merge (dict "source" $source) (omit $data "source") }}
{{- end }}
{{- include "elastic-ctr.given" $data }}
{{- end }}

{{/* Rows of columns have features, lines of clicks have none; $ */}}
{{- define "elastic-ctr.config.features" -}}
{{- with .Values.features }}
features: {{- include "elastic-ctr.given" . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "elastic-ctr.config.master" -}}
{{ include "elastic-ctr.config.common" "master" }}
training: {{ include "elastic-ctr.training.fullname" . }}
data: {{- include "elastic-ctr.config.data" . | nindent 2 }}
{{- include "elastic-ctr.config.features" . }}
{{- with .Values.statistics }}
{{ toYaml (dict "statistics" .) }}
{{- end }}
model: {{- include "elastic-ctr.given" .Values.model | nindent 2 }}
store: {{- include "elastic-ctr.config.store" . | nindent 2 }}
{{- /* The master alone has the archive, so that a change restarts no other pod. */}}
{{- with .Values.store.config.archive }}
  archive: {{- include "elastic-ctr.given" . | nindent 4 }}
{{- end }}
master: {{- include "elastic-ctr.given" .Values.master.config | nindent 2 }}
trainer: {{- include "elastic-ctr.given" .Values.trainer.config | nindent 2 }}
pservers: {{ int .Values.pserver.replicas }}
{{- if .Values.intake.enabled }}
intakeAddress: {{ include "elastic-ctr.intakeAddress" . }}
{{- end }}
{{- if or .Values.restore.url .Values.restore.bucket }}
restore: {{- include "elastic-ctr.given" .Values.restore | nindent 2 }}
{{- end }}
handoverSeconds: {{ include "elastic-ctr.training.handoverSeconds" . }}
{{- include "elastic-ctr.config.tracking" . }}
{{- end }}

{{/* Time for the mid-pass checkpoint of a replaced training: its pods' termination grace, less 10 s to end */}}
{{- define "elastic-ctr.training.handoverSeconds" -}}
{{ max 0 (sub (min (int .Values.trainer.terminationGracePeriodSeconds) (int .Values.pserver.terminationGracePeriodSeconds)) 10) }}
{{- end }}

{{/* The MLflow server, where tracking is on; $ */}}
{{- define "elastic-ctr.config.tracking" -}}
{{- if .Values.tracking.enabled }}
tracking:
  url: {{ printf "http://%s:%v" (include "elastic-ctr.tracking.fullname" .) (int .Values.tracking.service.port) }}
  experiment: {{ .Release.Name | quote }}
{{- end }}
{{- end }}

{{/* Common part of trainer and pserver; root, training */}}
{{- define "elastic-ctr.config.worker" -}}
{{- $root := .root }}
{{- include "elastic-ctr.config.common" "trainer" }}
{{- with .training }}
training: {{ . }}
{{- end }}
masterAddress: {{ include "elastic-ctr.masterAddress" $root }}
exitWhenDone: {{ eq $root.Values.training.scheduler "volcano" }}
{{- if $root.Values.training.tls.existingSecret }}
tlsDir: /etc/elastic-ctr/tls
{{- end }}
data: {{- include "elastic-ctr.config.data" $root | nindent 2 }}
{{- include "elastic-ctr.config.features" $root }}
model: {{- include "elastic-ctr.given" (omit $root.Values.model "startFrom") | nindent 2 }}
store: {{- include "elastic-ctr.config.store" $root | nindent 2 }}
{{- end }}

{{/* root, training */}}
{{- define "elastic-ctr.config.trainer" -}}
{{ include "elastic-ctr.config.worker" . }}
trainer: {{- include "elastic-ctr.given" .root.Values.trainer.config | nindent 2 }}
{{- include "elastic-ctr.config.tracking" .root }}
{{- end }}

{{/* root, training */}}
{{- define "elastic-ctr.config.pserver" -}}
{{- $root := .root }}
{{- include "elastic-ctr.config.worker" . }}
pserver: {{- include "elastic-ctr.given" $root.Values.pserver.config | nindent 2 }}
pservers: {{ int $root.Values.pserver.replicas }}
podDomain: {{ include "elastic-ctr.podDomain" (dict "root" $root "service" (include "elastic-ctr.pserver.fullname" $root)) }}
{{- end }}

{{- define "elastic-ctr.config.cube-server" -}}
{{ include "elastic-ctr.config.common" "cube-server" }}
model: {{- include "elastic-ctr.given" (omit .Values.model "startFrom") | nindent 2 }}
store: {{- include "elastic-ctr.config.store" . | nindent 2 }}
cube: {{- include "elastic-ctr.config.cube" . | nindent 2 }}
transferAddress: {{ include "elastic-ctr.transferAddress" . | quote }}
podDomain: {{ include "elastic-ctr.podDomain" (dict "root" . "service" (include "elastic-ctr.cube.fullname" .)) }}
graceSeconds: {{ max 0 (sub (int .Values.cube.terminationGracePeriodSeconds) 10) }}
{{- end }}

{{- define "elastic-ctr.config.cube-transfer" -}}
{{ include "elastic-ctr.config.common" "cube-transfer" }}
store: {{- include "elastic-ctr.config.store" . | nindent 2 }}
cubeTransfer: {{- include "elastic-ctr.config.cubeTransfer" . | nindent 2 }}
shards: {{ int .Values.cube.config.shards }}
replicasPerShard: {{ int .Values.cube.replicasPerShard }}
{{- with .Values.serving.config.canary }}
{{- if .share }}
canaryMinutes: {{ .minutes | default 10 | toYaml }}
{{- end }}
{{- end }}
cubeDomain: {{ include "elastic-ctr.podDomain" (dict "root" . "service" (include "elastic-ctr.cube.fullname" .)) }}
{{- end }}

{{- define "elastic-ctr.config.cube-builder" -}}
{{ include "elastic-ctr.config.common" "cube-builder" }}
store: {{- include "elastic-ctr.config.store" . | nindent 2 }}
cubeTransfer: {{- include "elastic-ctr.config.cubeTransfer" . | nindent 2 }}
{{- end }}

{{- define "elastic-ctr.config.intake" -}}
{{ include "elastic-ctr.config.common" "intake" }}
data: {{- include "elastic-ctr.given" .Values.data | nindent 2 }}
{{- include "elastic-ctr.config.features" . }}
intake: {{- include "elastic-ctr.given" .Values.intake.config | nindent 2 }}
{{- end }}

{{- define "elastic-ctr.config.serving" -}}
{{- $serving := deepCopy .Values.serving.config }}
{{- if not $serving.workers }}
{{- $_ := set $serving "workers" (include "elastic-ctr.cores" .Values.serving.resources | int) }}
{{- end }}
{{- include "elastic-ctr.config.common" "serving" }}
model: {{- include "elastic-ctr.given" (omit .Values.model "startFrom") | nindent 2 }}
store: {{- include "elastic-ctr.config.store" . | nindent 2 }}
serving: {{- include "elastic-ctr.given" $serving | nindent 2 }}
cube: {{- include "elastic-ctr.config.cube" . | nindent 2 }}
transferAddress: {{ include "elastic-ctr.transferAddress" . | quote }}
graceSeconds: {{ include "elastic-ctr.serving.graceSeconds" . }}
{{- end }}

{{/* Time for requests under way: the pod's termination grace, less preStopSeconds, less 10 s to end */}}
{{- define "elastic-ctr.serving.graceSeconds" -}}
{{ max 0 (sub (int .Values.serving.terminationGracePeriodSeconds) (int .Values.serving.preStopSeconds | add 10)) }}
{{- end }}

{{- define "elastic-ctr.config.scoring" -}}
{{- $scoring := deepCopy .Values.scoring.config }}
{{- if not $scoring.processes }}
{{- $_ := set $scoring "processes" (include "elastic-ctr.cores" .Values.scoring.resources | int) }}
{{- end }}
{{- include "elastic-ctr.config.common" "scoring" }}
data: {{- include "elastic-ctr.config.data" . | nindent 2 }}
store: {{- include "elastic-ctr.config.store" . | nindent 2 }}
scoring: {{- include "elastic-ctr.given" $scoring | nindent 2 }}
transferAddress: {{ include "elastic-ctr.transferAddress" . | quote }}
{{- end }}
