{{/* Every resource name; a test pins the full set of a default install. */}}

{{/* Every template names its object first, so this is where `podDefaults` are merged into the blocks. */}}
{{- define "elastic-ctr.fullname" -}}
{{- include "elastic-ctr.podDefaults" . }}
{{- .Values.fullnameOverride | default .Release.Name -}}
{{- end }}

{{/* master: StatefulSet, Service, ConfigMap, NetworkPolicy */}}
{{- define "elastic-ctr.master.fullname" -}}
{{ include "elastic-ctr.fullname" . }}-master
{{- end }}

{{/* pserver: Service, NetworkPolicy */}}
{{- define "elastic-ctr.pserver.fullname" -}}
{{ include "elastic-ctr.fullname" . }}-pserver
{{- end }}

{{/* pserver: StatefulSet, with training.scheduler=none. Each training has pservers, and so a name, of its own. */}}
{{- define "elastic-ctr.pserver.statefulset" -}}
{{ include "elastic-ctr.pserver.fullname" . }}-{{ include "elastic-ctr.training.hash" . }}
{{- end }}

{{/* trainer: Deployment, ScaledObject, with training.scheduler=none; NetworkPolicy */}}
{{- define "elastic-ctr.trainer.fullname" -}}
{{ include "elastic-ctr.fullname" . }}-trainer
{{- end }}

{{/* training: Volcano Job, ConfigMap; also the id of the training in the control protocol */}}
{{- define "elastic-ctr.training.fullname" -}}
{{ include "elastic-ctr.fullname" . }}-train-{{ include "elastic-ctr.training.hash" . }}
{{- end }}

{{/* file-server: StatefulSet, Service, ConfigMap, NetworkPolicy */}}
{{- define "elastic-ctr.file-server.fullname" -}}
{{ include "elastic-ctr.fullname" . }}-file-server
{{- end }}

{{/* cube: Service, ConfigMap, NetworkPolicy */}}
{{- define "elastic-ctr.cube.fullname" -}}
{{ include "elastic-ctr.fullname" . }}-cube
{{- end }}

{{/* cube: StatefulSet, PodDisruptionBudget, ScaledObject of one shard; (list $ shard). A pod reads its shard from its name. */}}
{{- define "elastic-ctr.cube.shard" -}}
{{ include "elastic-ctr.cube.fullname" (first .) }}-s{{ last . }}
{{- end }}

{{/* cube-transfer: StatefulSet, Service, ConfigMap, NetworkPolicy */}}
{{- define "elastic-ctr.cube-transfer.fullname" -}}
{{ include "elastic-ctr.fullname" . }}-cube-transfer
{{- end }}

{{/* intake: StatefulSet, Service, ConfigMap, NetworkPolicy */}}
{{- define "elastic-ctr.intake.fullname" -}}
{{ include "elastic-ctr.fullname" . }}-intake
{{- end }}

{{/* serving: Deployment, Service, ConfigMap, HorizontalPodAutoscaler, ScaledObject, PodDisruptionBudget, Ingress, HTTPRoute, GRPCRoute, NetworkPolicy */}}
{{- define "elastic-ctr.serving.fullname" -}}
{{ include "elastic-ctr.fullname" . }}-serving
{{- end }}

{{/* serving: Ingress for gRPC */}}
{{- define "elastic-ctr.serving.grpc" -}}
{{ include "elastic-ctr.serving.fullname" . }}-grpc
{{- end }}

{{/* scoring: CronJob, ConfigMap, NetworkPolicy */}}
{{- define "elastic-ctr.scoring.fullname" -}}
{{ include "elastic-ctr.fullname" . }}-scoring
{{- end }}

{{/* tracking: Deployment, Service, PersistentVolumeClaim, NetworkPolicy */}}
{{- define "elastic-ctr.tracking.fullname" -}}
{{ include "elastic-ctr.fullname" . }}-tracking
{{- end }}

{{/* client: NetworkPolicy, Pods of `helm test`; (list $ "serving-predict") */}}
{{- define "elastic-ctr.client.fullname" -}}
{{ include "elastic-ctr.fullname" . }}-client
{{- end }}
{{- define "elastic-ctr.test.fullname" -}}
{{ include "elastic-ctr.fullname" (first .) }}-test-{{ last . }}
{{- end }}

{{/* check of the values before an install or upgrade: Pod, ConfigMap, ServiceAccount */}}
{{- define "elastic-ctr.check-values.fullname" -}}
{{ include "elastic-ctr.fullname" . }}-check-values
{{- end }}

{{/* auth: Secret */}}
{{- define "elastic-ctr.auth.secret" -}}
{{- .Values.auth.existingSecret | default (printf "%s-auth" (include "elastic-ctr.fullname" .)) -}}
{{- end }}

{{/* all pods: ServiceAccount, NetworkPolicy that denies, ServiceMonitor, PodMonitor, PrometheusRule */}}
{{- define "elastic-ctr.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "elastic-ctr.fullname" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end }}

{{/*
PriorityClass; (list $ "pserver"). The name is cluster-wide, so it has namespace and release, parted by dots, which neither can
contain. It begins with elastic-ctr because names that begin with `system-`, as a namespace may, are Kubernetes' own.
*/}}
{{- define "elastic-ctr.priorityClass" -}}
{{- list "elastic-ctr" (first .).Release.Namespace (include "elastic-ctr.fullname" (first .)) (last .) | join "." }}
{{- end }}

{{/* ConfigMap of Grafana's dashboard */}}
{{- define "elastic-ctr.dashboard.fullname" -}}
{{ include "elastic-ctr.fullname" . }}-dashboard
{{- end }}
