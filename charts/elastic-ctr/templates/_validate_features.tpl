{{/* Rules of rows of columns, which python/elastic_ctr/config/{data,features}.py have as well; each as in _validate.tpl. */}}

{{/*
Names and words are text. Helm's templates get 1116 of 1116 and of 02134 alike, so any number is refused, as it is on one
machine (text_of in python/elastic_ctr/config/section.py); a feature that is named true came of y, on or yes.
*/}}
{{- define "elastic-ctr.validate.texts" -}}
{{- $places := dict "data.group" (list .Values.data.group) "serving.config.canary.feature" (list (.Values.serving.config.canary | default dict).feature) }}
{{- if kindIs "slice" .Values.data.slots }}
{{- $_ := set $places "data.slots" .Values.data.slots }}
{{- end }}
{{- range $name, $feature := .Values.features }}
{{- if has $name (list "true" "false") -}}
features has the name {{ $name }}, which YAML makes of yes, no, on, off, y and n, too: give another name, and column for the column
{{ end }}
{{- if kindIs "slice" $feature.vocabulary }}
{{- $_ := set $places (printf "features.%s.vocabulary" $name) $feature.vocabulary }}
{{- end }}
{{- end }}
{{- range $place, $texts := $places }}
{{- range $texts }}
{{- if not (or (kindIs "string" .) (kindIs "invalid" .)) -}}
{{ $place }} has {{ toJson . }}, which is no text to YAML: write it in quotes
{{ break }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.format" -}}
{{- $data := .Values.data }}
{{- $format := $data.format | default "clicks" }}
{{- if eq $format "clicks" }}
{{- if not $data.slots -}}
data.slots is missing: list the slots that are features, or give data.format and features
{{ end }}
{{- range $key := list "label" "shows" "columns" "reader" }}
{{- if get $data $key -}}
data.{{ $key }} is for rows of columns: leave it out, or set data.format to csv, tsv, jsonl or parquet
{{ end }}
{{- end }}
{{- else }}
{{- if $data.slots -}}
data.slots is for data.format clicks: leave it out, for with {{ $format }} features says what columns mean
{{ end }}
{{- if not $data.label -}}
data.label is missing: name the column of {{ $format }} rows that says which were clicked
{{ end }}
{{- if ne (eq $format "reader") (not (empty $data.reader)) -}}
data.reader goes with data.format reader: give both, or neither
{{ end }}
{{- if and $data.columns (not (has $format (list "csv" "tsv"))) -}}
data.columns is for csv and tsv: leave it out, for the columns of {{ $format }} have names already
{{ else if $data.columns }}
{{- range $key := list "label" "shows" }}
{{- $column := get $data $key }}
{{- if and $column (not (has $column $data.columns)) -}}
data.{{ $key }} {{ quote $column }} is not among data.columns: name one of {{ join ", " $data.columns }}
{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "elastic-ctr.validate.features" -}}
{{- $data := .Values.data }}
{{- $format := $data.format | default "clicks" }}
{{- $features := .Values.features }}
{{- if and (ne $format "clicks") (not $features) -}}
features is missing: say what the columns of {{ $format }} rows mean to the network
{{ else if and (eq $format "clicks") $features -}}
features is for rows of columns: leave it out, for with data.format clicks data.slots names the features
{{ end }}
{{- if and .Values.statistics (not $features) -}}
statistics is of the columns that features read, and there are no features: leave it out
{{ end }}
{{- if and $features (ne $format "clicks") }}
{{- if .Values.model.sparseDim -}}
model.sparseDim is for data.format clicks: leave it out, and bound the keys of a feature by its hash
{{ end }}
{{- $crossable := list }}
{{- range $name, $feature := $features }}
{{- if not (has $feature.type (list "numeric" "crossed")) }}
{{- $crossable = append $crossable $name }}
{{- end }}
{{- end }}
{{- if hasKey $features "<<" -}}
features.<< has a name that merges maps in YAML: give another name, and column for the column
{{ end }}
{{- if not $crossable -}}
features has none with keys: give at least one that is categorical, bucketized or text
{{ end }}
{{- range $name, $feature := $features }}
{{- $column := $feature.column | default $name }}
{{- if eq $feature.type "crossed" }}
{{- range $feature.of }}
{{- if not (has . $crossable) -}}
features.{{ $name }} is a cross of {{ . }}, which {{ ternary "cannot be crossed" "is no feature" (hasKey $features .) }}: those that can be are {{ join ", " $crossable }}
{{ end }}
{{- end }}
{{- else if and $data.columns (not (has $column $data.columns)) -}}
features.{{ $name }} reads the column {{ quote $column }}, which the data lacks: it has {{ join ", " $data.columns }}
{{ else if has $column (list $data.label $data.shows) -}}
features.{{ $name }} reads {{ quote $column }}, which says what was clicked: leave it out, for no request will have it
{{ end }}
{{- include "elastic-ctr.validate.feature" (list $name $feature) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Rules of one feature; name, feature */}}
{{- define "elastic-ctr.validate.feature" -}}
{{- $name := printf "features.%s" (index . 0) }}
{{- $feature := index . 1 }}
{{- $listed := $feature.vocabulary }}
{{- if kindIs "string" $listed }}
{{- $listed = $listed | replace "\r\n" "\n" | trimSuffix "\n" | trimSuffix "\r" | splitList "\n" }}
{{- end }}
{{- if and $feature.vocabulary $feature.hash -}}
{{ $name }} has vocabulary and hash, which both bound the keys: give one of them
{{ end }}
{{- if and (eq $feature.type "categorical") (not (kindIs "invalid" $feature.round)) }}
{{- if $feature.separator -}}
{{ $name }} has round, which is of one number, and separator, which is of several values: give one of them
{{ end }}
{{- if kindIs "map" $listed -}}
{{ $name }} has round, and the statistics count texts: list the vocabulary, or leave round out
{{ end }}
{{- end }}
{{- if kindIs "slice" $listed }}
{{- $seen := dict }}
{{- range $listed }}
{{- $value := toString . }}
{{- if not $value -}}
{{ $name }}.vocabulary has an empty value: remove it, for an empty cell has no key
{{ break }}
{{- else if hasKey $seen $value -}}
{{ $name }}.vocabulary has {{ quote $value }} more than once: name each value once
{{ break }}
{{- else if and (not (kindIs "invalid" $feature.round)) (not (regexMatch "^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?$" $value)) -}}
{{ $name }} has round, and its vocabulary {{ quote $value }}: name numbers alone
{{ break }}
{{- end }}
{{- $_ := set $seen $value true }}
{{- end }}
{{- end }}
{{- if kindIs "slice" $feature.boundaries }}
{{- include "elastic-ctr.validate.rising" (list (printf "%s.boundaries" $name) $feature.boundaries false) }}
{{- end }}
{{- with $feature.ngrams }}
{{- include "elastic-ctr.validate.rising" (list (printf "%s.ngrams" $name) . true) }}
{{- end }}
{{- $scales := 0 }}
{{- range $step := $feature.transform }}
{{- if kindIs "map" $step }}
{{- with $step.clip }}
{{- include "elastic-ctr.validate.rising" (list (printf "%s.transform clip" $name) . false) }}
{{- end }}
{{- else if has $step (list "standardize" "minMax") }}
{{- $scales = add1 $scales }}
{{- end }}
{{- end }}
{{- if gt (int $scales) 1 -}}
{{ $name }}.transform has standardize and minMax, which each scale by the statistics: give one of them, once
{{ end }}
{{- end }}

{{/* Numbers of a list must rise; key, list, whether two may be the same */}}
{{- define "elastic-ctr.validate.rising" -}}
{{- $key := index . 0 }}
{{- $numbers := index . 1 }}
{{- $same := index . 2 }}
{{- range $place, $number := rest $numbers }}
{{- $before := index $numbers $place | float64 }}
{{- if or (gt $before (float64 $number)) (and (eq $before (float64 $number)) (not $same)) -}}
{{ $key }} does not rise, {{ toJson $before }} stands before {{ toJson $number }}: sort it
{{ break }}
{{- end }}
{{- end }}
{{- end }}
