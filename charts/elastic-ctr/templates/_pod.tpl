{{/* Fields of a pod. Helpers take (dict "root" $ "component" "cube" "block" .Values.cube), or the part of it that they name. */}}

{{/*
Fills each component's block, in place, with the keys of `podDefaults` that it does not set, and its `service` with those of
`serviceDefaults`. Both are then empty, so that later calls are quick.
*/}}
{{- define "elastic-ctr.podDefaults" -}}
{{- range list "fileServer" "master" "trainer" "pserver" "cube" "cubeTransfer" "intake" "serving" "scoring" "tracking" "check" }}
{{- $block := get $.Values . }}
{{- include "elastic-ctr.fillIn" (dict "given" $block "defaults" $.Values.podDefaults) }}
{{- if hasKey $block "service" }}
{{- include "elastic-ctr.fillIn" (dict "given" $block.service "defaults" $.Values.serviceDefaults) }}
{{- end }}
{{- end }}
{{- $_ := set .Values "podDefaults" dict }}
{{- $_ := set .Values "serviceDefaults" dict }}
{{- end }}

{{/* Merges maps key by key; (dict "given" "defaults"). A given key keeps its value, also when that is false, empty or null. */}}
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

{{/* Fields of the spec of every pod; root, component, block, and the account where it is not the release's */}}
{{- define "elastic-ctr.pod" -}}
serviceAccountName: {{ .account | default (include "elastic-ctr.serviceAccountName" .root) | quote }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with uniq (concat (.root.Values.image.pullSecrets | default list) (.root.Values.global.imagePullSecrets | default list)) }}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end }}
securityContext: {{- include "elastic-ctr.given" .block.podSecurityContext | nindent 2 }}
terminationGracePeriodSeconds: {{ int .block.terminationGracePeriodSeconds }}
{{- with include "elastic-ctr.priorityClassName" . }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .block.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .block.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "elastic-ctr.tolerations" . }}
tolerations: {{- . | nindent 2 }}
{{- end }}
{{- with .block.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with .block.hostAliases }}
hostAliases: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .block.dnsConfig }}
dnsConfig: {{- include "elastic-ctr.given" . | nindent 2 }}
{{- end }}
{{- with include "elastic-ctr.containers" (list .block "initContainers") }}
initContainers: {{- . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A pod with a volume waits for its node; the others leave a lost node after `tolerationSeconds`; root, block */}}
{{- define "elastic-ctr.tolerations" -}}
{{- $seconds := int .root.Values.tolerationSeconds }}
{{- $tolerations := list }}
{{- if not (dig "persistence" "enabled" false .block) }}
{{- range list "not-ready" "unreachable" }}
{{- $tolerations = append $tolerations (dict "key" (printf "node.kubernetes.io/%s" .) "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" $seconds) }}
{{- end }}
{{- end }}
{{- with concat $tolerations (.block.tolerations | default list) }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{/* The block's own PriorityClass, or the release's for pservers and trainers; root, component, block */}}
{{- define "elastic-ctr.priorityClassName" -}}
{{- if .block.priorityClassName -}}
{{ .block.priorityClassName }}
{{- else if and .root.Values.priorityClasses.enabled (has .component (list "pserver" "trainer")) -}}
{{ include "elastic-ctr.priorityClass" (list .root .component) }}
{{- end }}
{{- end }}

{{/* Spreads pods with the same labels over nodes where that is possible; block, labels (selector labels as text) */}}
{{- define "elastic-ctr.spread" -}}
topologySpreadConstraints:
{{- with .block.topologySpreadConstraints }}
{{ toYaml . | indent 2 }}
{{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- .labels | nindent 8 }}
{{- end }}
{{- end }}
