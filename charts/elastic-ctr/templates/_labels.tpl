{{/* Labels of selectors; they never change; (list $ "cube") */}}
{{- define "elastic-ctr.selectorLabels" -}}
app.kubernetes.io/name: {{ (first .).Chart.Name | quote }}
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

{{/* Labels of a pod, without the chart's version, so that an upgrade does not restart pods; root, component, block */}}
{{- define "elastic-ctr.podLabels" -}}
{{ include "elastic-ctr.selectorLabels" (list .root .component) }}
app.kubernetes.io/part-of: elastic-ctr
{{- with .block.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}
