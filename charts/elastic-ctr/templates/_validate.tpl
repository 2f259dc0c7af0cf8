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

{{- define "elastic-ctr.validate.kinds" -}}
{{- $metrics := .Values.metrics }}
{{- $serving := .Values.serving }}
{{- $off := dict "enabled" false }}
{{- $needed := list
  (list "metrics.serviceMonitor" $metrics.serviceMonitor "monitoring.coreos.com/v1" "Prometheus' operator")
  (list "metrics.prometheusRule" $metrics.prometheusRule "monitoring.coreos.com/v1" "Prometheus' operator")
  (list "serving.httpRoute" ($serving.enabled | ternary $serving.httpRoute $off) "gateway.networking.k8s.io/v1" "the Gateway API")
  (list "trainer.autoscaling" (.Values.training.enabled | ternary .Values.trainer.autoscaling $off) "keda.sh/v1alpha1" "KEDA")
  (list "cube.autoscaling" (.Values.cube.enabled | ternary .Values.cube.autoscaling $off) "keda.sh/v1alpha1" "KEDA")
  (list "serving.autoscaling" (and $serving.enabled $serving.autoscaling.requestsInFlight | empty | ternary $off $serving.autoscaling) "keda.sh/v1alpha1" "KEDA, for requestsInFlight,")
  (list "serving.grpcRoute" ($serving.enabled | ternary $serving.grpcRoute $off) "gateway.networking.k8s.io/v1" "the Gateway API") }}
{{- range $each := $needed }}
{{- $version := index $each 2 }}
{{- if and (index $each 1).enabled (include "elastic-ctr.live" $) (not ($.Capabilities.APIVersions.Has $version)) -}}
{{ first $each }}.enabled needs the kinds of {{ $version }}, which this cluster does not know: install {{ last $each }} or set {{ first $each }}.enabled=false
{{ end }}
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

{{/* New tokens in each rendering would be new pods' and no client's. */}}
{{- define "elastic-ctr.validate.tokens" -}}
{{- if not (or .Values.auth.existingSecret (include "elastic-ctr.looksUp" .)) -}}
auth.existingSecret is empty, and Helm renders without looking into a cluster (helm template, Argo CD, --dry-run=client), so each rendering would have other tokens: use helm install or --dry-run=server, or set auth.existingSecret to ctr-tokens and make that Secret by kubectl create secret generic ctr-tokens --namespace {{ .Release.Namespace }} --from-literal=clicks="web $(openssl rand -hex 24)" --from-literal=operate="ops $(openssl rand -hex 24)" --from-literal=internal="release $(openssl rand -hex 24)"
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.network" -}}
{{- $network := .Values.model.network }}
{{- if and (kindIs "map" $network) (hasKey $network "file") -}}
model.network.file {{ $network.file }} is read by `elastic-ctr` alone, a chart cannot read it: leave it out and give its text, --set-file model.network.source={{ $network.file }}
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.canary" -}}
{{- $share := (.Values.serving.config.canary | default dict).share }}
{{- if and $share (not (and .Values.serving.enabled .Values.cubeTransfer.enabled)) -}}
serving.config.canary.share {{ $share }} needs serving and cube-transfer in one release: the one answers with the candidate while the other waits; set it to 0, or enable both
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.sourceFiles" -}}
{{- $kafka := .Values.data.source.kafka | default dict }}
{{- $files := list }}
{{- range list "caFile" "certFile" "keyFile" "usernameFile" "passwordFile" }}
{{- if get $kafka . }}
{{- $files = append $files . }}
{{- end }}
{{- end }}
{{- if and (or .Values.training.enabled .Values.intake.enabled) $files (not .Values.dataSecret.existingSecret) }}
{{- range .Values.intake.enabled | ternary (list "intake") (list "master" "trainer") }}
{{- if not (get $.Values .).extraVolumeMounts -}}
data.source.kafka.{{ first $files }} is a file that no pod has: set dataSecret.existingSecret to a Secret with it, or mount it into {{ $.Values.intake.enabled | ternary "intake" "master and trainer" }} by extraVolumes and extraVolumeMounts
{{ break }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.keytab" -}}
{{- range $section, $keytab := dict "data.source" .Values.data.source.keytab "store.config" .Values.store.config.keytab }}
{{- if and $keytab (not $.Values.kerberos.existingSecret) (not $.Values.master.extraVolumeMounts) -}}
{{ $section }}.keytab is a file that no pod has: set kerberos.existingSecret to a Secret with it and with krb5.conf, or mount both by podDefaults.extraVolumes and extraVolumeMounts
{{ end }}
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.topicOfIntake" -}}
{{- $values := .Values }}
{{- if and $values.intake.enabled (hasPrefix "kafka://" $values.data.source.url) }}
{{- if not (or $values.intake.persistence.enabled $values.intake.persistence.existingClaim) -}}
intake.persistence.enabled is false, and the intake reads a topic: each new pod would read it from data.start on, and clicks would be trained again: set it to true
{{- else if not $values.training.enabled -}}
training.enabled is false, and the intake reads a topic: its log keeps what this release's training has not read, and would be full one day: set it to true, and let other releases read this intake
{{- end }}
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.logs" -}}
{{- $values := .Values }}
{{- if and $values.training.enabled (regexMatch "^(delta\\+)?file://" $values.data.source.url) (not $values.dataVolume.existingClaim) }}
{{- if not (and $values.master.extraVolumeMounts $values.trainer.extraVolumeMounts) -}}
data.source.url {{ $values.data.source.url }} is a folder of a machine, and no pod has it: set dataVolume.existingClaim to a volume with the logs, or mount one into master and trainer by extraVolumes and extraVolumeMounts
{{- end }}
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.table" -}}
{{- $url := .Values.data.source.url }}
{{- if and .Values.training.enabled (regexMatch "^(delta|iceberg)" $url) (hasSuffix "/cube" .Values.master.image.repository) -}}
data.source.url {{ $url }} is a table, whose log the master reads with packages that {{ .Values.master.image.repository }} lacks: set master.image.repository to that of the trainer, {{ .Values.trainer.image.repository }}
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

{{- define "elastic-ctr.validate.bucketFiles" -}}
{{- $values := .Values }}
{{- if not $values.bucketSecret.existingSecret }}
{{- range $setting, $given := dict "store.config" $values.store.config "data.source" $values.data.source "store.config.archive" ($values.store.config.archive | default dict) }}
{{- if and (eq "files" (dig "credentials" "" ($given.bucket | default dict) | toString)) (not $values.master.extraVolumeMounts) -}}
{{ $setting }}.bucket.credentials is files, and no pod has them: set bucketSecret.existingSecret to a Secret with the bucket's credentials
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

{{- define "elastic-ctr.validate.ingress" -}}
{{- range list "ingress" "grpcIngress" }}
{{- $ingress := get $.Values.serving . }}
{{- if and $ingress.enabled (not $ingress.hosts) -}}
serving.{{ . }}.enabled without serving.{{ . }}.hosts would take every name that reaches the cluster: set serving.{{ . }}.hosts to the names that clients ask for
{{ end }}
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.routes" -}}
{{- range list "httpRoute" "grpcRoute" }}
{{- if and (get $.Values.serving .).enabled (not (get $.Values.serving .).parentRefs) -}}
serving.{{ . }}.enabled without serving.{{ . }}.parentRefs is a route of no gateway: set serving.{{ . }}.parentRefs to the Gateway, such as [{name: gateway}]
{{ end }}
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.grpc" -}}
{{- range list "grpcIngress" "grpcRoute" }}
{{- if and (get $.Values.serving .).enabled (not (int $.Values.serving.config.grpcPort)) -}}
serving.{{ . }}.enabled leads to gRPC, and serving.config.grpcPort 0 closes its port: set serving.config.grpcPort, or serving.{{ . }}.enabled=false
{{ end }}
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.autoscaling" -}}
{{- $scaling := .Values.serving.autoscaling }}
{{- if and $scaling.enabled (gt (int $scaling.minReplicas) (int $scaling.maxReplicas)) -}}
serving.autoscaling.minReplicas {{ int $scaling.minReplicas }} is above serving.autoscaling.maxReplicas {{ int $scaling.maxReplicas }}: lower the one or raise the other
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.keda" -}}
{{- $serving := and .Values.serving.autoscaling.enabled .Values.serving.autoscaling.requestsInFlight }}
{{- $trainer := .Values.trainer }}
{{- $cube := .Values.cube }}
{{- range $setting, $on := dict "cube.autoscaling.enabled" $cube.autoscaling.enabled "serving.autoscaling.requestsInFlight" $serving "trainer.autoscaling.enabled" $trainer.autoscaling.enabled }}
{{- if and $on (not $.Values.metrics.prometheusUrl) -}}
{{ $setting }} reads metrics from Prometheus, and metrics.prometheusUrl is empty: set it, such as http://prometheus.monitoring:9090
{{ end }}
{{- end }}
{{- if and $cube.autoscaling.enabled (gt (int $cube.replicasPerShard) (int $cube.autoscaling.maxReplicas)) -}}
cube.replicasPerShard {{ int $cube.replicasPerShard }} is above cube.autoscaling.maxReplicas {{ int $cube.autoscaling.maxReplicas }}: lower the one or raise the other
{{ end }}
{{- if $trainer.autoscaling.enabled }}
{{- if ne .Values.training.scheduler "none" -}}
trainer.autoscaling.enabled needs trainers in a Deployment, because a Volcano Job has no scale to set: set training.scheduler=none, or trainer.autoscaling.enabled=false
{{ end }}
{{- if not (or .Values.intake.enabled (regexMatch "^(kafka|intake)://|^file:.*[?]follow$" .Values.data.source.url)) -}}
trainer.autoscaling.enabled scales by the lag of a stream, and data.source.url {{ .Values.data.source.url }} is none, so there would always be trainer.minReplicas trainers: set trainer.autoscaling.enabled=false and trainer.replicas
{{ end }}
{{- if gt (int $trainer.minReplicas) (int $trainer.autoscaling.maxReplicas) -}}
trainer.minReplicas {{ int $trainer.minReplicas }} is above trainer.autoscaling.maxReplicas {{ int $trainer.autoscaling.maxReplicas }}: lower the one or raise the other
{{ end }}
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.autoscalingNeedsCpu" -}}
{{- $resources := include "elastic-ctr.resources" .Values.serving.resources | fromYaml }}
{{- $scaling := .Values.serving.autoscaling }}
{{- if and $scaling.enabled (not $scaling.requestsInFlight) (not (dig "requests" "cpu" "" $resources)) -}}
serving.autoscaling.enabled measures use of CPU by what is requested, and serving.resources requests none: set serving.resources.cpu
{{- end }}
{{- end }}
