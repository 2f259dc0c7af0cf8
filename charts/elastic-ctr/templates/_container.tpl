{{/* Fields of a container. Helpers take a dict with the keys that they name. */}}

{{/* Image of a component, by digest where one is given; root, block */}}
{{- define "elastic-ctr.image" -}}
{{- $image := .block.image }}
{{- $registry := coalesce .root.Values.global.imageRegistry $image.registry .root.Values.image.registry }}
{{- $tag := coalesce $image.tag .root.Values.image.tag .root.Chart.AppVersion }}
{{- with $registry }}{{ . }}/{{ end }}{{ $image.repository }}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $tag }}{{ end }}
{{- end }}

{{/* Image and pull policy; root, block */}}
{{- define "elastic-ctr.container.image" -}}
image: {{ include "elastic-ctr.image" . | quote }}
imagePullPolicy: {{ coalesce .block.image.pullPolicy .root.Values.image.pullPolicy }}
{{- end }}

{{/* Environment of a role; root, block */}}
{{- define "elastic-ctr.env" -}}
- name: POD_NAME
  valueFrom:
    fieldRef:
      apiVersion: v1
      fieldPath: metadata.name
- name: ELASTIC_CTR_CONFIG
  value: /etc/elastic-ctr/config/config.yaml
{{- $own := dict "ELASTIC_CTR_LOG_FORMAT" .root.Values.log.format "ELASTIC_CTR_LOG_LEVEL" .root.Values.log.level }}
{{- if .root.Values.kerberos.existingSecret }}
{{- $_ := set $own "KRB5_CONFIG" (printf "%s/krb5.conf" .root.Values.kerberos.mountPath) }}
{{- end }}
{{- include "elastic-ctr.extraEnv" (dict "defaults" $own "block" .block) }}
{{- end }}

{{/* `extraEnv` over the defaults, as a container's list; defaults (a map by name), block */}}
{{- define "elastic-ctr.extraEnv" -}}
{{- $env := deepCopy .defaults }}
{{- range $name, $given := .block.extraEnv }}
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

{{/* The containers of a map by name, in the order of names, as a pod's list; (list block "extraContainers") */}}
{{- define "elastic-ctr.containers" -}}
{{- $containers := list }}
{{- range $name, $given := get (first .) (last .) | default dict }}
{{- $security := deepCopy (first $).containerSecurityContext | dict "securityContext" }}
{{- $containers = append $containers (include "elastic-ctr.given" (mergeOverwrite $security $given) | fromYaml | merge (dict "name" $name)) }}
{{- end }}
{{- with $containers }}{{ toYaml . }}{{ end }}
{{- end }}

{{/* `lifecycle` of a role's container; block, and the chart's own preStop, which that of the block replaces */}}
{{- define "elastic-ctr.lifecycle" -}}
{{- $handlers := include "elastic-ctr.given" .block.lifecycle | fromYaml }}
{{- if and .preStop (not $handlers.preStop) }}
{{- $_ := set $handlers "preStop" .preStop }}
{{- end }}
{{- with $handlers -}}
lifecycle: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* `cpu`, `memory` and `limits` as a container's resources; a map that has `requests` is taken as it is */}}
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
{{- /* A pod accepts the number 0.5; the same pod in a Volcano Job is refused unless it is text. */}}
{{- $_ := set $amounts $resource (toString $amount) }}
{{- end }}
{{- end }}
{{- end }}
{{- toYaml $given }}
{{- end }}

{{/* The CPU request in whole cores, at least one: the number of worker processes; a map of resources */}}
{{- define "elastic-ctr.cores" -}}
{{- $asked := .cpu }}
{{- with .requests }}{{ $asked = .cpu }}{{ end }}
{{- max 1 (include "elastic-ctr.amount" ($asked | default 1) | float64 | ceil | int) }}
{{- end }}

{{/* A quantity as a plain number: 250m is 0.25, 1Ki is 1024; a number or text */}}
{{- define "elastic-ctr.amount" -}}
{{- $factors := dict
  "m" 1e-3 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18
  "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 }}
{{- $text := toString . }}
{{- $suffix := regexFind "[a-zA-Z]+$" $text }}
{{- mulf (trimSuffix $suffix $text | float64) (get $factors $suffix | default 1.0) | printf "%f" }}
{{- end }}

{{/* startup, liveness and readiness by HTTP; block, port, and the paths alive (/healthz) and ready (/readyz) */}}
{{- define "elastic-ctr.probes" -}}
{{- $probes := dict }}
{{- range list "startup" "liveness" "readiness" }}
{{- $path := eq . "readiness" | ternary ($.ready | default "/readyz") ($.alive | default "/healthz") }}
{{- $_ := set $probes (printf "%sProbe" .) (merge (dict "httpGet" (dict "path" $path "port" $.port)) (get $.block.probes .)) }}
{{- end }}
{{- toYaml $probes }}
{{- end }}
