{{/* Volumes, mounts and claims. Helpers take a dict with the keys that they name. */}}

{{/* Mounts that every role has; root, block, role (the volume with its configuration is <role>-config) */}}
{{- define "elastic-ctr.volumeMounts" -}}
- name: {{ .role }}-config
  mountPath: /etc/elastic-ctr/config
  readOnly: true
- name: auth
  mountPath: /etc/elastic-ctr/auth
  readOnly: true
- name: tmp
  mountPath: /tmp
{{- with .root.Values.bucketSecret }}
{{- if and .existingSecret (ne $.role "intake") }}
- name: bucket
  mountPath: {{ .mountPath | quote }}
  readOnly: true
{{- end }}
{{- end }}
{{- if include "elastic-ctr.hasKerberos" (list .root .role) }}
- name: kerberos
  mountPath: {{ .root.Values.kerberos.mountPath | quote }}
  readOnly: true
{{- end }}
{{- include "elastic-ctr.extraVolumeMounts" .block }}
{{- end }}

{{/* Whether a role asks HDFS with a ticket: all but the intake for the store, those that read hours for these; $, role */}}
{{- define "elastic-ctr.usesKerberos" -}}
{{- $values := (index . 0).Values }}
{{- $role := index . 1 }}
{{- if and $values.store.config.keytab (ne $role "intake") }}true
{{- else if and $values.data.source.keytab (has $role (list "master" "trainer" "scoring")) }}true{{ end }}
{{- end }}

{{/* Whether a role has the Secret with krb5.conf and keytab; $, role */}}
{{- define "elastic-ctr.hasKerberos" -}}
{{- if (index . 0).Values.kerberos.existingSecret }}{{ include "elastic-ctr.usesKerberos" . }}{{ end }}
{{- end }}

{{/* `extraVolumeMounts` as a container's list; a block */}}
{{- define "elastic-ctr.extraVolumeMounts" -}}
{{- range $path, $mount := .extraVolumeMounts }}
- mountPath: {{ $path | quote }}
{{ toYaml $mount | indent 2 }}
{{- end }}
{{- end }}

{{/* Volumes that every role has; root, block, configmap, roles (one volume for each role's file of the ConfigMap) */}}
{{- define "elastic-ctr.volumes" -}}
- name: auth
  secret:
    secretName: {{ include "elastic-ctr.auth.secret" .root | quote }}
    items:
      {{- range include "elastic-ctr.auth.rights" .roles | fromJsonArray }}
      - key: {{ . }}
        path: {{ . }}
      {{- end }}
- name: tmp
  emptyDir:
    sizeLimit: {{ toYaml .root.Values.tmpSizeLimit }}
{{- with .root.Values.bucketSecret.existingSecret }}
{{- if not (has "intake" $.roles) }}
- name: bucket
  secret:
    secretName: {{ . | quote }}
{{- end }}
{{- end }}
{{- if include "elastic-ctr.hasKerberos" (list .root (first .roles)) }}
- name: kerberos
  secret:
    secretName: {{ .root.Values.kerberos.existingSecret | quote }}
{{- end }}
{{- range .roles }}
- name: {{ . }}-config
  configMap:
    name: {{ $.configmap }}
    items:
      - key: {{ . }}.config.yaml
        path: config.yaml
{{- end }}
{{- include "elastic-ctr.extraVolumes" .block }}
{{- end }}

{{/* `extraVolumes` as a pod's list; a block */}}
{{- define "elastic-ctr.extraVolumes" -}}
{{- range $name, $source := .extraVolumes }}
- name: {{ $name | quote }}
{{ toYaml $source | indent 2 }}
{{- end }}
{{- end }}

{{/* The volume with click logs, for a source file://; $ */}}
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

{{/* Whether pods of a component have the Secret of a Kafka topic: those that read it; $, component */}}
{{- define "elastic-ctr.hasDataSecret" -}}
{{- $values := (index . 0).Values }}
{{- $byIntake := and $values.intake.enabled (hasPrefix "kafka://" $values.data.source.url) }}
{{- if and $values.dataSecret.existingSecret (eq $byIntake (eq (index . 1) "intake")) }}true{{ end }}
{{- end }}

{{/* The Secret of a Kafka topic; $ */}}
{{- define "elastic-ctr.dataSecret" -}}
- name: source
  secret:
    secretName: {{ .Values.dataSecret.existingSecret | quote }}
{{- end }}
{{- define "elastic-ctr.dataSecretMount" -}}
- name: source
  mountPath: {{ .Values.dataSecret.mountPath | quote }}
  readOnly: true
{{- end }}

{{/* The volume of a StatefulSet that has no claim template: an emptyDir or an existing claim; block, name */}}
{{- define "elastic-ctr.persistence.volume" -}}
{{- $persistence := .block.persistence }}
{{- if not $persistence.enabled -}}
- name: {{ .name }}
  emptyDir:
    sizeLimit: {{ toYaml $persistence.sizeLimit }}
{{- else if $persistence.existingClaim -}}
- name: {{ .name }}
  persistentVolumeClaim:
    claimName: {{ $persistence.existingClaim | quote }}
{{- end }}
{{- end }}

{{/*
Claims of a StatefulSet; root, component, block, name. Their labels cannot change, so they hold no version. Scaling a shard
down deletes the claim of the removed replica; scaling any other component to 0 keeps its claim.
*/}}
{{- define "elastic-ctr.persistence.claim" -}}
{{- $persistence := .block.persistence }}
{{- if and $persistence.enabled (not $persistence.existingClaim) -}}
persistentVolumeClaimRetentionPolicy:
  whenDeleted: {{ $persistence.keep | ternary "Retain" "Delete" }}
  whenScaled: {{ or $persistence.keep (ne .component "cube") | ternary "Retain" "Delete" }}
volumeClaimTemplates:
  - apiVersion: v1
    kind: PersistentVolumeClaim
    metadata:
      name: {{ .name }}
      labels: {{- include "elastic-ctr.selectorLabels" (list .root .component) | nindent 8 }}
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
