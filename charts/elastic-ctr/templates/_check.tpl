{{/*
A pod that runs one `elastic-ctr check` and ends; root, name, container, component, annotations (those that make it a hook), args, and the
account where it is not the release's. A ConfigMap `values` is mounted. No extraEnv, no extraVolumes and no more containers: before an
install, the Secrets and ConfigMaps that they name may not exist.
*/}}
{{- define "elastic-ctr.check.pod" -}}
{{- $root := .root }}
{{- $block := $root.Values.check }}
apiVersion: v1
kind: Pod
metadata: {{- include "elastic-ctr.metadata" (dict "root" $root "component" .component "name" .name "labels" $block.podLabels "annotations" (merge .annotations ($block.podAnnotations | default dict))) | nindent 2 }}
spec:
  {{- include "elastic-ctr.pod" (dict "root" $root "component" .component "account" .account "block" (omit $block "initContainers")) | nindent 2 }}
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
