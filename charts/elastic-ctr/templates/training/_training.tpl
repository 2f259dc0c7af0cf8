{{/*
The name of a training is a hash of everything that cannot change while it runs: the role files of pservers and trainers (with
the number of pservers, the data and the model), both pod templates and the Volcano Job. Another name is another Job, which
continues from the last checkpoint. The number of trainers, the chart's version and comments are not part of the hash.
*/}}
{{- define "elastic-ctr.training.hash" -}}
{{- $parts := list }}
{{- range list "config.trainer" "config.pserver" "training.job" }}
{{- $parts = append $parts (include (printf "elastic-ctr.%s" .) (dict "root" $ "training" "") | fromYaml | toJson) }}
{{- end }}
{{- join "\n---\n" $parts | sha256sum | trunc 8 }}
{{- end }}

{{/*
The `spec` of the Volcano Job; root, training. An empty training gives the text for the hash: without the trainers' counts,
which may change while the Job runs.

Volcano fills in defaults only when a Job is created. Every such field is set here, or the next upgrade would be refused.
*/}}
{{- define "elastic-ctr.training.job" -}}
{{- $root := .root }}
{{- $values := $root.Values }}
{{- $pservers := int $values.pserver.replicas }}
{{- $trainers := dict "least" 0 "wanted" 0 }}
{{- if .training }}
{{- $trainers = dict "least" (int $values.trainer.minReplicas) "wanted" (int $values.trainer.replicas) }}
{{- end -}}
schedulerName: volcano
queue: {{ $values.training.queue | quote }}
# Gang: all pservers and trainer.minReplicas trainers start together, or no pod does.
minAvailable: {{ add $pservers $trainers.least }}
maxRetry: {{ int $values.training.maxRetry }}
{{- with include "elastic-ctr.priorityClassName" (dict "root" $root "component" "trainer" "block" $values.trainer) }}
# The priority of the Job, so of the elastic trainers: Volcano never preempts the gang's minimum.
priorityClassName: {{ . | quote }}
{{- end }}
plugins:
  # Gives pods their names as host names. The plugin's own NetworkPolicy would admit only the Job's pods.
  svc: ["--publish-not-ready-addresses=true", "--disable-network-policy=true"]
tasks:
  - name: pserver
    replicas: {{ $pservers }}
    minAvailable: {{ $pservers }}
    maxRetry: {{ int $values.training.maxRetry }}
    policies:
      # Volcano replaces a deleted pod by itself, but not a failed one.
      - event: PodFailed
        action: RestartPod
      # Pservers end when the master reports that everything is trained.
      - event: TaskCompleted
        action: CompleteJob
    template: {{- include "elastic-ctr.pserver.pod" . | nindent 6 }}
  - name: trainer
    replicas: {{ $trainers.wanted }}
    minAvailable: {{ $trainers.least }}
    maxRetry: {{ int $values.training.maxRetry }}
    policies:
      - event: PodFailed
        action: RestartPod
    template: {{- include "elastic-ctr.trainer.pod" . | nindent 6 }}
{{- end }}

{{/*
Annotations of a training's pods; block, preemptable. Volcano's gang plugin counts the pods of a Job, not of a task: on a node
with pservers alone it preempted one of them instead of a trainer.
*/}}
{{- define "elastic-ctr.training.annotations" -}}
{{- mergeOverwrite (dict "volcano.sh/preemptable" .preemptable) (.block.podAnnotations | default dict) | toYaml }}
{{- end }}

{{/* Pod template of trainers; root, training */}}
{{- define "elastic-ctr.trainer.pod" -}}
{{- $root := .root }}
{{- $block := $root.Values.trainer }}
{{- $logs := $root.Values.dataVolume.existingClaim -}}
metadata:
  labels: {{- include "elastic-ctr.podLabels" (dict "root" $root "component" "trainer" "block" $block) | nindent 4 }}
  annotations: {{- include "elastic-ctr.training.annotations" (dict "block" $block "preemptable" "true") | nindent 4 }}
spec:
  {{- include "elastic-ctr.pod" (dict "root" $root "component" "trainer" "block" $block) | nindent 2 }}
  {{- include "elastic-ctr.spread" (dict "block" $block "labels" (include "elastic-ctr.selectorLabels" (list $root "trainer"))) | nindent 2 }}
  restartPolicy: {{ include "elastic-ctr.training.restartPolicy" $root }}
  containers:
    - name: trainer
      {{- include "elastic-ctr.container.image" (dict "root" $root "block" $block) | nindent 6 }}
      args: [trainer]
      env: {{- include "elastic-ctr.env" (dict "root" $root "block" $block) | nindent 8 }}
      ports:
        - name: admin
          containerPort: {{ int $block.config.adminPort }}
          protocol: TCP
      {{- include "elastic-ctr.probes" (dict "block" $block "port" "admin") | nindent 6 }}
      {{- with include "elastic-ctr.lifecycle" (dict "block" $block) }}
      {{- . | nindent 6 }}
      {{- end }}
      resources: {{- include "elastic-ctr.resources" $block.resources | nindent 8 }}
      securityContext: {{- include "elastic-ctr.given" $block.containerSecurityContext | nindent 8 }}
      volumeMounts:
        {{- include "elastic-ctr.volumeMounts" (dict "root" $.root "block" $block "role" "trainer") | nindent 8 }}
        - name: scratch
          mountPath: /var/lib/elastic-ctr/trainer
        {{- include "elastic-ctr.training.tlsMount" $root | nindent 8 }}
        {{- if $logs }}
        {{- include "elastic-ctr.dataVolumeMount" $root | nindent 8 }}
        {{- end }}
        {{- if include "elastic-ctr.hasDataSecret" (list $root "trainer") }}
        {{- include "elastic-ctr.dataSecretMount" $root | nindent 8 }}
        {{- end }}
    {{- with include "elastic-ctr.containers" (list $block "extraContainers") }}
    {{- . | nindent 4 }}
    {{- end }}
  volumes:
    {{- include "elastic-ctr.volumes" (dict "root" $root "block" $block "configmap" .training "roles" (list "trainer")) | nindent 4 }}
    {{- include "elastic-ctr.training.tls" $root | nindent 4 }}
    - name: scratch
      emptyDir:
        sizeLimit: {{ toYaml $block.persistence.sizeLimit }}
    {{- if $logs }}
    {{- include "elastic-ctr.dataVolume" $root | nindent 4 }}
    {{- end }}
    {{- if include "elastic-ctr.hasDataSecret" (list $root "trainer") }}
    {{- include "elastic-ctr.dataSecret" $root | nindent 4 }}
    {{- end }}
{{- end }}

{{/* Pod template of pservers; root, training */}}
{{- define "elastic-ctr.pserver.pod" -}}
{{- $root := .root }}
{{- $block := $root.Values.pserver -}}
metadata:
  labels: {{- include "elastic-ctr.podLabels" (dict "root" $root "component" "pserver" "block" $block) | nindent 4 }}
  annotations: {{- include "elastic-ctr.training.annotations" (dict "block" $block "preemptable" "false") | nindent 4 }}
spec:
  {{- include "elastic-ctr.pod" (dict "root" $root "component" "pserver" "block" $block) | nindent 2 }}
  {{- include "elastic-ctr.spread" (dict "block" $block "labels" (include "elastic-ctr.selectorLabels" (list $root "pserver"))) | nindent 2 }}
  # The chart's own Service: Volcano's loses its names for a moment whenever Volcano restarts a pod.
  subdomain: {{ include "elastic-ctr.pserver.fullname" $root }}
  restartPolicy: {{ include "elastic-ctr.training.restartPolicy" $root }}
  containers:
    - name: pserver
      {{- include "elastic-ctr.container.image" (dict "root" $root "block" $block) | nindent 6 }}
      args: [pserver]
      env: {{- include "elastic-ctr.env" (dict "root" $root "block" $block) | nindent 8 }}
      ports:
        - name: pserver
          containerPort: {{ int $block.config.port }}
          protocol: TCP
        - name: admin
          containerPort: {{ int $block.config.adminPort }}
          protocol: TCP
      {{- include "elastic-ctr.probes" (dict "block" $block "port" "admin") | nindent 6 }}
      {{- with include "elastic-ctr.lifecycle" (dict "block" $block) }}
      {{- . | nindent 6 }}
      {{- end }}
      resources: {{- include "elastic-ctr.resources" $block.resources | nindent 8 }}
      securityContext: {{- include "elastic-ctr.given" $block.containerSecurityContext | nindent 8 }}
      volumeMounts:
        {{- include "elastic-ctr.volumeMounts" (dict "root" $.root "block" $block "role" "pserver") | nindent 8 }}
        - name: scratch
          mountPath: /var/lib/elastic-ctr/pserver
        {{- include "elastic-ctr.training.tlsMount" $root | nindent 8 }}
    {{- with include "elastic-ctr.containers" (list $block "extraContainers") }}
    {{- . | nindent 4 }}
    {{- end }}
  volumes:
    {{- include "elastic-ctr.volumes" (dict "root" $root "block" $block "configmap" .training "roles" (list "pserver")) | nindent 4 }}
    {{- include "elastic-ctr.training.tls" $root | nindent 4 }}
    - name: scratch
      emptyDir:
        sizeLimit: {{ toYaml $block.persistence.sizeLimit }}
{{- end }}

{{/* In a Job a container that succeeds stays ended; without Volcano it starts again and waits for work. A crash always restarts it. */}}
{{- define "elastic-ctr.training.restartPolicy" -}}
{{ eq .Values.training.scheduler "volcano" | ternary "OnFailure" "Always" }}
{{- end }}

{{/* The certificates of trainers and pservers, where `training.tls` names a Secret; $ */}}
{{- define "elastic-ctr.training.tls" -}}
{{- with .Values.training.tls.existingSecret }}
- name: tls
  secret:
    secretName: {{ . | quote }}
{{- end }}
{{- end }}
{{- define "elastic-ctr.training.tlsMount" -}}
{{- if .Values.training.tls.existingSecret }}
- name: tls
  mountPath: /etc/elastic-ctr/tls
  readOnly: true
{{- end }}
{{- end }}
