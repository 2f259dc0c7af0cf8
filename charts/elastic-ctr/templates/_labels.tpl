{{/* What finds an object or a pod again, and never changes; (list $ "cube") */}}
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

{{/* Labels of a pod: nothing that a new chart version would change without need; (list $ "cube" .Values.cube) */}}
{{- define "elastic-ctr.podLabels" -}}
{{ include "elastic-ctr.selectorLabels" (list (index . 0) (index . 1)) }}
app.kubernetes.io/part-of: elastic-ctr
{{- with (index . 2).podLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}
