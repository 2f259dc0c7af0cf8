{{/* Give each component's block, in place, what it does not say of `podDefaults`; done again it changes nothing. */}}
{{- define "elastic-ctr.podDefaults" -}}
{{- range list "fileServer" "master" "trainer" "pserver" "cube" "cubeTransfer" "serving" "tracking" }}
{{- include "elastic-ctr.fillIn" (dict "given" (get $.Values .) "defaults" $.Values.podDefaults) }}
{{- end }}
{{- end }}

{{/* Maps are filled in key by key. A key that is given stays as it is, also when it is false, empty or null. */}}
{{- define "elastic-ctr.fillIn" -}}
{{- $given := .given }}
{{- range $key, $default := .defaults }}
{{- if not (hasKey $given $key) }}
{{- $_ := set $given $key (kindIs "map" $default | ternary (deepCopy $default) $default) }}
{{- else if and (kindIs "map" $default) (kindIs "map" (get $given $key)) }}
{{- include "elastic-ctr.fillIn" (dict "given" (get $given $key) "defaults" $default) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Shared fields of every pod; (list $ "cube" .Values.cube). `persistent` (a fourth) is true for pods with a volume. */}}
{{- define "elastic-ctr.pod" -}}
{{- $root := index . 0 }}
{{- $component := index . 1 }}
{{- $block := index . 2 }}
{{- $persistent := and (gt (len .) 3) (index . 3) -}}
serviceAccountName: {{ include "elastic-ctr.serviceAccountName" $root | quote }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with uniq (concat ($root.Values.image.pullSecrets | default list) ($root.Values.global.imagePullSecrets | default list)) }}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end }}
securityContext: {{- include "elastic-ctr.given" $block.podSecurityContext | nindent 2 }}
terminationGracePeriodSeconds: {{ int $block.terminationGracePeriodSeconds }}
{{- with include "elastic-ctr.priorityClassName" (list $root $component $block) }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $block.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $block.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "elastic-ctr.tolerations" (list $root $block $persistent) }}
tolerations: {{- . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A lost node is waited for only where a volume ties the pod to it; (list $ block persistent) */}}
{{- define "elastic-ctr.tolerations" -}}
{{- $root := index . 0 }}
{{- $tolerations := list }}
{{- if not (index . 2) }}
{{- range list "not-ready" "unreachable" }}
{{- $tolerations = append $tolerations (dict "key" (printf "node.kubernetes.io/%s" .) "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" (int $root.Values.tolerationSeconds)) }}
{{- end }}
{{- end }}
{{- with concat $tolerations ((index . 1).tolerations | default list) }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{/* (list $ component block) */}}
{{- define "elastic-ctr.priorityClassName" -}}
{{- $root := index . 0 }}
{{- if (index . 2).priorityClassName -}}
{{ (index . 2).priorityClassName }}
{{- else if and $root.Values.priorityClasses.enabled (has (index . 1) (list "pserver" "trainer")) -}}
{{ include "elastic-ctr.priorityClass" (list $root (index . 1)) }}
{{- end }}
{{- end }}

{{/* Copies of one thing on different nodes where that is possible; (list block selectorLabels as text) */}}
{{- define "elastic-ctr.spread" -}}
topologySpreadConstraints:
{{- with (first .).topologySpreadConstraints }}
{{ toYaml . | indent 2 }}
{{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- last . | nindent 8 }}
{{- end }}
{{- end }}

{{/* Environment of a role; (list $ block) */}}
{{- define "elastic-ctr.env" -}}
{{- $root := index . 0 -}}
- name: POD_NAME
  valueFrom:
    fieldRef:
      apiVersion: v1
      fieldPath: metadata.name
- name: ELASTIC_CTR_CONFIG
  value: /etc/elastic-ctr/config/config.yaml
{{- $log := dict "ELASTIC_CTR_LOG_FORMAT" $root.Values.log.format "ELASTIC_CTR_LOG_LEVEL" $root.Values.log.level }}
{{- include "elastic-ctr.extraEnv" (list $log (index . 1)) }}
{{- end }}

{{/* A map by name as a container's list; (list defaults block), where the block's word goes before a default's */}}
{{- define "elastic-ctr.extraEnv" -}}
{{- $env := deepCopy (first .) }}
{{- range $name, $given := (last .).extraEnv }}
{{- $_ := set $env $name $given }}
{{- end }}
{{- range $name, $given := $env }}
- name: {{ $name | quote }}
{{- if kindIs "map" $given }}
{{ toYaml $given | indent 2 }}
{{- else }}
  value: {{ $given | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* Mounts that every role has; (list $ block "cube-server"), where the last names the volume with its file */}}
{{- define "elastic-ctr.volumeMounts" -}}
- name: {{ index . 2 }}-config
  mountPath: /etc/elastic-ctr/config
  readOnly: true
- name: auth
  mountPath: /etc/elastic-ctr/auth
  readOnly: true
- name: tmp
  mountPath: /tmp
{{- include "elastic-ctr.extraVolumeMounts" (index . 1) }}
{{- end }}

{{/* A map by path as a container's list; a block */}}
{{- define "elastic-ctr.extraVolumeMounts" -}}
{{- range $path, $mount := .extraVolumeMounts }}
- mountPath: {{ $path | quote }}
{{ toYaml $mount | indent 2 }}
{{- end }}
{{- end }}

{{/* Volumes that every role has; (list $ block configmap "cube-server" …): a volume for each role file of the ConfigMap */}}
{{- define "elastic-ctr.volumes" -}}
{{- $root := index . 0 }}
{{- $block := index . 1 }}
{{- $configmap := index . 2 -}}
- name: auth
  secret:
    secretName: {{ include "elastic-ctr.auth.secret" $root | quote }}
    items:
      - key: {{ $root.Values.auth.key | quote }}
        path: token
- name: tmp
  emptyDir:
    sizeLimit: {{ toYaml $root.Values.tmpSizeLimit }}
{{- range slice . 3 }}
- name: {{ . }}-config
  configMap:
    name: {{ $configmap }}
    items:
      - key: {{ . }}.config.yaml
        path: config.yaml
{{- end }}
{{- include "elastic-ctr.extraVolumes" $block }}
{{- end }}

{{/* A map by name as a pod's list; a block */}}
{{- define "elastic-ctr.extraVolumes" -}}
{{- range $name, $source := .extraVolumes }}
- name: {{ $name | quote }}
{{ toYaml $source | indent 2 }}
{{- end }}
{{- end }}

{{/* Where logs are, for a source file://; $ */}}
{{- define "elastic-ctr.dataVolume" -}}
- name: data
  persistentVolumeClaim:
    claimName: {{ .Values.dataVolume.existingClaim | quote }}
    readOnly: {{ .Values.dataVolume.readOnly }}
{{- end }}
{{- define "elastic-ctr.dataVolumeMount" -}}
- name: data
  mountPath: {{ .Values.dataVolume.mountPath | quote }}
  readOnly: {{ .Values.dataVolume.readOnly }}
{{- end }}

{{/* cpu, memory, limits as a container's resources; what has `requests` is taken as it is */}}
{{- define "elastic-ctr.resources" -}}
{{- $given := include "elastic-ctr.given" . | fromYaml }}
{{- if not (hasKey $given "requests") }}
{{- $requests := pick $given "cpu" "memory" "ephemeral-storage" }}
{{- $limits := merge (dict) ($given.limits | default dict) (pick $given "memory") }}
{{- $given = dict }}
{{- with $requests }}{{ $_ := set $given "requests" . }}{{ end }}
{{- with $limits }}{{ $_ := set $given "limits" . }}{{ end }}
{{- end }}
{{- $given = pick $given "requests" "limits" }}
{{- range $amounts := $given }}
{{- range $resource, $amount := $amounts }}
{{- if and (kindIs "float64" $amount) (ne (floor $amount) $amount) }}
{{- /* A pod takes 0.5; the same pod in a Volcano Job is refused unless it is text. */}}
{{- $_ := set $amounts $resource (toString $amount) }}
{{- end }}
{{- end }}
{{- end }}
{{- toYaml $given }}
{{- end }}

{{/* The CPU request in whole cores, at least one: how many processes answer. A block of resources. */}}
{{- define "elastic-ctr.cores" -}}
{{- $asked := .cpu }}
{{- with .requests }}{{ $asked = .cpu }}{{ end }}
{{- $text := toString ($asked | default 1) }}
{{- $cores := float64 1 }}
{{- if hasSuffix "m" $text }}
{{- $cores = divf (trimSuffix "m" $text | float64) 1000 }}
{{- else }}
{{- $cores = float64 $text }}
{{- end }}
{{- max 1 (ceil $cores | int) }}
{{- end }}

{{/* startup, liveness, readiness by HTTP; (list block "port") or (list block "port" "/healthz" "/readyz") */}}
{{- define "elastic-ctr.probes" -}}
{{- $block := index . 0 }}
{{- $port := index . 1 }}
{{- $alive := "/healthz" }}
{{- $ready := "/readyz" }}
{{- if gt (len .) 2 }}
{{- $alive = index . 2 }}
{{- $ready = index . 3 }}
{{- end }}
{{- $probes := dict }}
{{- range list "startup" "liveness" "readiness" }}
{{- $asked := dict "path" (eq . "readiness" | ternary $ready $alive) "port" $port }}
{{- $_ := set $probes (printf "%sProbe" .) (merge (dict "httpGet" $asked) (get $block.probes .)) }}
{{- end }}
{{- toYaml $probes }}
{{- end }}

{{/* The claim of a StatefulSet of one, or its emptyDir; (list block "name") */}}
{{- define "elastic-ctr.persistence.volume" -}}
{{- $persistence := (first .).persistence }}
{{- if not $persistence.enabled -}}
- name: {{ last . }}
  emptyDir:
    sizeLimit: {{ toYaml $persistence.sizeLimit }}
{{- else if $persistence.existingClaim -}}
- name: {{ last . }}
  persistentVolumeClaim:
    claimName: {{ $persistence.existingClaim | quote }}
{{- end }}
{{- end }}

{{/*
What a StatefulSet says of its claims; (list $ "cube" block "name"). Its labels cannot change, so no version is in them. Fewer
replicas of a shard are a smaller cube; whoever scales one of the others to 0 wants it back as it was.
*/}}
{{- define "elastic-ctr.persistence.claim" -}}
{{- $persistence := (index . 2).persistence }}
{{- if and $persistence.enabled (not $persistence.existingClaim) -}}
persistentVolumeClaimRetentionPolicy:
  whenDeleted: {{ $persistence.keep | ternary "Retain" "Delete" }}
  whenScaled: {{ or $persistence.keep (ne (index . 1) "cube") | ternary "Retain" "Delete" }}
volumeClaimTemplates:
  - apiVersion: v1
    kind: PersistentVolumeClaim
    metadata:
      name: {{ index . 3 }}
      labels: {{- include "elastic-ctr.selectorLabels" (list (index . 0) (index . 1)) | nindent 8 }}
    spec:
      accessModes: [ReadWriteOnce]
      {{- with $persistence.storageClass }}
      storageClassName: {{ . | quote }}
      {{- end }}
      resources:
        requests:
          storage: {{ toYaml $persistence.size }}
{{- end }}
{{- end }}

{{/* type, nodePort and annotations of a block's Service; (list service) */}}
{{- define "elastic-ctr.service.annotations" -}}
{{- with .annotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- define "elastic-ctr.service.nodePort" -}}
{{- if and .nodePort (ne .type "ClusterIP") }}
nodePort: {{ int .nodePort }}
{{- end }}
{{- end }}
