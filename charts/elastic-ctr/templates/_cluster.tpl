{{/*
"yes" when Helm renders with a cluster. Helm's built-in list of APIs has groups and versions only; the discovery of a cluster has
kinds too. The check needs neither a permission nor an existing object.
*/}}
{{- define "elastic-ctr.live" -}}
{{- if .Capabilities.APIVersions.Has "v1/Pod" }}yes{{ end }}
{{- end }}
