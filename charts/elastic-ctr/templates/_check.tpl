{{/*
A pod that runs one `elastic-ctr check` and ends; root, name, container, component, annotations (those that make it a hook), args, and the
account where it is not the release's. A ConfigMap `values` is mounted. No extraEnv and no extraVolumes: before an install, the Secrets and
ConfigMaps that they name may not exist.
*/}}
{{- define "elastic-ctr.check.pod" -}}
{{- $root := .root }}
{{- $block := $root.Values.check }}
apiVersion: v1
kind: Pod
metadata:
  name: {{ .name }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels: {{- toYaml (merge (include "elastic-ctr.labels" (list $root .component) | fromYaml) ($block.podLabels | default dict)) | nindent 4 }}
  annotations: {{- toYaml (merge .annotations ($block.podAnnotations | default dict)) | nindent 4 }}
spec:
  {{- include "elastic-ctr.pod" (dict "root" $root "component" .component "account" .account "block" $block) | nindent 2 }}
  restartPolicy: Never
  containers:
    - name: {{ .container }}
      {{- include "elastic-ctr.container.image" (dict "root" $root "block" $root.Values.cubeTransfer) | nindent 6 }}
      args: {{- toYaml (prepend .args "check") | nindent 8 }}
      resources: {{- include "elastic-ctr.resources" $block.resources | nindent 8 }}
      securityContext: {{- include "elastic-ctr.given" $block.containerSecurityContext | nindent 8 }}
      volumeMounts:
        {{- if .values }}
        - name: values
          mountPath: /etc/elastic-ctr/values
          readOnly: true
        {{- end }}
        - name: tmp
          mountPath: /tmp
  volumes:
    {{- with .values }}
    - name: values
      configMap:
        name: {{ . }}
    {{- end }}
    - name: tmp
      emptyDir:
        sizeLimit: {{ toYaml $root.Values.tmpSizeLimit }}
{{- end }}
