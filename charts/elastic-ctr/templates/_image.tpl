{{/* Image of a component's block; (list $ .Values.cube). By digest where one is given. */}}
{{- define "elastic-ctr.image" -}}
{{- $root := index . 0 }}
{{- $image := (index . 1).image }}
{{- $registry := coalesce $root.Values.global.imageRegistry $image.registry $root.Values.image.registry }}
{{- $tag := coalesce $image.tag $root.Values.image.tag $root.Chart.AppVersion }}
{{- with $registry }}{{ . }}/{{ end }}{{ $image.repository }}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $tag }}{{ end }}
{{- end }}

{{/* Name, image and pull policy of a container; (list $ .Values.cube) */}}
{{- define "elastic-ctr.container.image" -}}
image: {{ include "elastic-ctr.image" . | quote }}
imagePullPolicy: {{ coalesce (index . 1).image.pullPolicy (index . 0).Values.image.pullPolicy }}
{{- end }}
