{{/* The label app.kubernetes.io/name; $ */}}
{{- define "elastic-ctr.name" -}}
{{ .Values.nameOverride | default .Chart.Name }}
{{- end }}

{{/* Labels of selectors; they never change; (list $ "cube") */}}
{{- define "elastic-ctr.selectorLabels" -}}
app.kubernetes.io/name: {{ include "elastic-ctr.name" (first .) | quote }}
app.kubernetes.io/instance: {{ (first .).Release.Name | quote }}
app.kubernetes.io/component: {{ last . }}
{{- end }}

{{/* Labels of an object; (list $ "cube") */}}
{{- define "elastic-ctr.labels" -}}
{{ include "elastic-ctr.selectorLabels" . }}
app.kubernetes.io/part-of: elastic-ctr
app.kubernetes.io/version: {{ (first .).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (first .).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (first .).Chart.Name (first .).Chart.Version | replace "+" "_" | trunc 63 | quote }}
{{- end }}

{{/*
Metadata of an object; root, component, name, and of this object alone labels and annotations. `wide`: it is of the whole cluster. What the
chart sets goes before commonLabels and commonAnnotations.
*/}}
{{- define "elastic-ctr.metadata" -}}
{{- $values := .root.Values }}
name: {{ .name | quote }}
{{- if not .wide }}
namespace: {{ .root.Release.Namespace | quote }}
{{- end }}
labels: {{- toYaml (merge (include "elastic-ctr.labels" (list .root .component) | fromYaml) (.labels | default dict) ($values.commonLabels | default dict)) | nindent 2 }}
{{- with merge dict (.annotations | default dict) ($values.commonAnnotations | default dict) }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Labels of a pod, without the chart's version, so that an upgrade does not restart pods; root, component, block */}}
{{- define "elastic-ctr.podLabels" -}}
{{ include "elastic-ctr.selectorLabels" (list .root .component) }}
app.kubernetes.io/part-of: elastic-ctr
{{- with .block.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}
