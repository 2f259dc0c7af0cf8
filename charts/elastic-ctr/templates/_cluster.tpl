{{/*
"yes" where there is a cluster to ask. `helm template` and `helm lint` know groups and versions, but no kinds; a cluster's
discovery names kinds. So no right is needed to find out, and no object that a namespace may lack.
*/}}
{{- define "elastic-ctr.live" -}}
{{- if .Capabilities.APIVersions.Has "v1/Pod" }}yes{{ end }}
{{- end }}
