{{/*
The name of a training is a hash of what cannot change while it runs: the role files of pservers and trainers (so the number
of pservers, the data, the model), both pod templates, what Volcano is told. Another name is another Job, which goes on from
the last checkpoint. The number of trainers and the chart's version are not in it.
*/}}
{{- define "elastic-ctr.training.hash" -}}
{{- $parts := list }}
{{- range list "config.trainer" "config.pserver" "training.job" }}
{{- $parts = append $parts (include (printf "elastic-ctr.%s" .) (list $ "")) }}
{{- end }}
{{- join "\n---\n" $parts | sha256sum | trunc 8 }}
{{- end }}

{{/*
The Volcano Job from `spec` on; (list $ training), or (list $ "") for what the hash is made of: all but the trainers' counts,
which alone may change while it runs.

Volcano fills in defaults when a Job is created and never again: every field that it would fill in stands here, or the next
upgrade would be refused.
*/}}
{{- define "elastic-ctr.training.job" -}}
{{- $root := first . }}
{{- $values := $root.Values }}
{{- $pservers := int $values.pserver.replicas }}
{{- $trainers := dict "least" 0 "wanted" 0 }}
{{- if last . }}
{{- $trainers = dict "least" (int $values.trainer.minReplicas) "wanted" (int $values.trainer.replicas) }}
{{- end -}}
schedulerName: volcano
queue: {{ $values.training.queue | quote }}
# All pservers and the least trainers, or nobody.
minAvailable: {{ add $pservers $trainers.least }}
maxRetry: {{ int $values.training.maxRetry }}
{{- with include "elastic-ctr.priorityClassName" (list $root "trainer" $values.trainer) }}
# Of the Job as a whole, so of the elastic trainers: the gang's minimum is never taken, whatever its priority.
priorityClassName: {{ . | quote }}
{{- end }}
plugins:
  # Gives pods their names as host names. Its own NetworkPolicy would shut out everybody but the Job's pods.
  svc: ["--publish-not-ready-addresses=true", "--disable-network-policy=true"]
tasks:
  - name: pserver
    replicas: {{ $pservers }}
    minAvailable: {{ $pservers }}
    maxRetry: {{ int $values.training.maxRetry }}
    policies:
      # A deleted pod is created again anyway; one that failed would stay.
      - event: PodFailed
        action: RestartPod
      # Pservers end when the master says that all is trained.
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
Annotations of a training's pods; (list $block preemptable). Volcano's gang plugin counts pods of a Job and not of a task: with
only pservers on a node it took one of them and kept the trainer that may go.
*/}}
{{- define "elastic-ctr.training.annotations" -}}
{{- mergeOverwrite (dict "volcano.sh/preemptable" (last .)) ((first .).podAnnotations | default dict) | toYaml }}
{{- end }}

{{/* The pods of trainers, from `metadata` on; (list $ training) */}}
{{- define "elastic-ctr.trainer.pod" -}}
{{- $root := first . }}
{{- $block := $root.Values.trainer }}
{{- $logs := $root.Values.dataVolume.existingClaim -}}
metadata:
  labels: {{- include "elastic-ctr.podLabels" (list $root "trainer" $block) | nindent 4 }}
  annotations: {{- include "elastic-ctr.training.annotations" (list $block "true") | nindent 4 }}
spec:
  {{- include "elastic-ctr.pod" (list $root "trainer" $block) | nindent 2 }}
  {{- include "elastic-ctr.spread" (list $block (include "elastic-ctr.selectorLabels" (list $root "trainer"))) | nindent 2 }}
  restartPolicy: {{ include "elastic-ctr.training.restartPolicy" $root }}
  containers:
    - name: trainer
      {{- include "elastic-ctr.container.image" (list $root $block) | nindent 6 }}
      args: [trainer]
      env: {{- include "elastic-ctr.env" (list $root $block) | nindent 8 }}
      ports:
        - name: admin
          containerPort: {{ int $block.config.adminPort }}
          protocol: TCP
      {{- include "elastic-ctr.probes" (list $block "admin") | nindent 6 }}
      resources: {{- include "elastic-ctr.resources" $block.resources | nindent 8 }}
      securityContext: {{- include "elastic-ctr.given" $block.containerSecurityContext | nindent 8 }}
      volumeMounts:
        {{- include "elastic-ctr.volumeMounts" (list $root $block "trainer") | nindent 8 }}
        - name: scratch
          mountPath: {{ $block.config.scratchDir | quote }}
        {{- if $logs }}
        {{- include "elastic-ctr.dataVolumeMount" $root | nindent 8 }}
        {{- end }}
  volumes:
    {{- include "elastic-ctr.volumes" (list $root $block (last .) "trainer") | nindent 4 }}
    - name: scratch
      emptyDir:
        sizeLimit: {{ toYaml $block.persistence.sizeLimit }}
    {{- if $logs }}
    {{- include "elastic-ctr.dataVolume" $root | nindent 4 }}
    {{- end }}
{{- end }}

{{/* The pods of pservers, from `metadata` on; (list $ training) */}}
{{- define "elastic-ctr.pserver.pod" -}}
{{- $root := first . }}
{{- $block := $root.Values.pserver -}}
metadata:
  labels: {{- include "elastic-ctr.podLabels" (list $root "pserver" $block) | nindent 4 }}
  annotations: {{- include "elastic-ctr.training.annotations" (list $block "false") | nindent 4 }}
spec:
  {{- include "elastic-ctr.pod" (list $root "pserver" $block) | nindent 2 }}
  {{- include "elastic-ctr.spread" (list $block (include "elastic-ctr.selectorLabels" (list $root "pserver"))) | nindent 2 }}
  # Names of the chart's own Service: Volcano's would be gone for a moment whenever it starts a pod again.
  subdomain: {{ include "elastic-ctr.pserver.fullname" $root }}
  restartPolicy: {{ include "elastic-ctr.training.restartPolicy" $root }}
  containers:
    - name: pserver
      {{- include "elastic-ctr.container.image" (list $root $block) | nindent 6 }}
      args: [pserver]
      env: {{- include "elastic-ctr.env" (list $root $block) | nindent 8 }}
      ports:
        # The first of 16: each generation of servers takes the next.
        - name: pserver
          containerPort: {{ int $block.config.port }}
          protocol: TCP
        - name: admin
          containerPort: {{ int $block.config.adminPort }}
          protocol: TCP
      {{- include "elastic-ctr.probes" (list $block "admin") | nindent 6 }}
      resources: {{- include "elastic-ctr.resources" $block.resources | nindent 8 }}
      securityContext: {{- include "elastic-ctr.given" $block.containerSecurityContext | nindent 8 }}
      volumeMounts:
        {{- include "elastic-ctr.volumeMounts" (list $root $block "pserver") | nindent 8 }}
        - name: scratch
          mountPath: {{ $block.config.scratchDir | quote }}
  volumes:
    {{- include "elastic-ctr.volumes" (list $root $block (last .) "pserver") | nindent 4 }}
    - name: scratch
      emptyDir:
        sizeLimit: {{ toYaml $block.persistence.sizeLimit }}
{{- end }}

{{/* In a Job an end is an end; without Volcano a pod waits for more work. Either way a crash restarts in place. */}}
{{- define "elastic-ctr.training.restartPolicy" -}}
{{ eq .Values.training.scheduler "volcano" | ternary "OnFailure" "Always" }}
{{- end }}
