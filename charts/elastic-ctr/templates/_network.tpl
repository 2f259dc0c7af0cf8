{{/*
NetworkPolicies: all pods of the release are denied everything but names, then each component is allowed the edges that
docs/architecture.md draws. An edge stands on both its ends.
*/}}

{{/* Head of a component's policy; (list $ "cube" "name") */}}
{{- define "elastic-ctr.network.policy" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ index . 2 }}
  namespace: {{ (index . 0).Release.Namespace | quote }}
  labels: {{- include "elastic-ctr.labels" (list (index . 0) (index . 1)) | nindent 4 }}
spec:
  podSelector:
    matchLabels: {{- include "elastic-ctr.selectorLabels" (list (index . 0) (index . 1)) | nindent 6 }}
  policyTypes: [Ingress, Egress]
{{- end }}

{{/* Components of this release as peers; (list $ "trainer" "pserver") */}}
{{- define "elastic-ctr.network.peers" -}}
{{- $root := first . }}
{{- $peers := list }}
{{- range rest . }}
{{- $peers = append $peers (dict "podSelector" (dict "matchLabels" (include "elastic-ctr.selectorLabels" (list $root .) | fromYaml))) }}
{{- end }}
{{- toYaml $peers }}
{{- end }}

{{/* Who counts as a client: pods of this release labelled so, and those that values name; $ */}}
{{- define "elastic-ctr.network.clients" -}}
{{- include "elastic-ctr.network.peers" (list . "client") }}
{{- with .Values.networkPolicy.clients }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* TCP ports; a list of numbers */}}
{{- define "elastic-ctr.network.ports" -}}
{{- $ports := list }}
{{- range . }}
{{- $ports = append $ports (dict "port" (int .) "protocol" "TCP") }}
{{- end }}
{{- toYaml $ports }}
{{- end }}

{{/* Ports of serving's doors, as a list in YAML; $ */}}
{{- define "elastic-ctr.serving.doors" -}}
{{- $config := .Values.serving.config }}
{{- $ports := list (int $config.port) }}
{{- with int $config.grpcPort }}
{{- $ports = append $ports . }}
{{- end }}
{{- toYaml $ports }}
{{- end }}

{{/* Ingress of Prometheus to ports; (list $ 8401) */}}
{{- define "elastic-ctr.network.prometheus" -}}
{{- $ports := rest . }}
{{- with (first .).Values.networkPolicy.prometheus -}}
- from: {{- toYaml . | nindent 4 }}
  ports: {{- include "elastic-ctr.network.ports" $ports | nindent 4 }}
{{- end }}
{{- end }}

{{/* Egress to components; (list $ (list "master") (list 8700)) */}}
{{- define "elastic-ctr.network.to" -}}
- to: {{- include "elastic-ctr.network.peers" (prepend (index . 1) (index . 0)) | nindent 4 }}
  ports: {{- include "elastic-ctr.network.ports" (index . 2) | nindent 4 }}
{{- end }}

{{/* Egress to Hadoop, or to an HTTP store outside, at the block's ports and those the URLs name; (list block url …) */}}
{{- define "elastic-ctr.network.outside" -}}
{{- $block := first . }}
{{- $ports := list }}
{{- range $block.ports }}
{{- $ports = append $ports (int .) }}
{{- end }}
{{- range rest . }}
{{- /* hdfs:// names ports of Hadoop's own protocol, which nobody here speaks. */}}
{{- if not (hasPrefix "hdfs://" .) }}
{{- range regexFindAll ":[0-9]+" (regexReplaceAll "^[a-z]+://([^/]*).*$" . "${1}") -1 }}
{{- $ports = append $ports (trimPrefix ":" . | int) }}
{{- end }}
{{- end }}
{{- end }}
- to:
  {{- range $block.cidrs }}
    - ipBlock:
        cidr: {{ . | quote }}
  {{- end }}
  ports: {{- include "elastic-ctr.network.ports" (uniq $ports) | nindent 4 }}
{{- end }}

{{/* Egress to the store, and to the source when "source" is given too; (list $) or (list $ "source") */}}
{{- define "elastic-ctr.network.store" -}}
{{- $root := first . }}
{{- $values := $root.Values }}
{{- $url := $values.store.config.url | default "" }}
{{- $edges := list }}
{{- if not $url }}
{{- $edges = append $edges (include "elastic-ctr.network.to" (list $root (list "file-server") (list $values.fileServer.service.port))) }}
{{- else if hasPrefix "http" $url }}
{{- $edges = append $edges (include "elastic-ctr.network.outside" (list $values.networkPolicy.store $url)) }}
{{- end }}
{{- $hadoop := list }}
{{- range prepend (ternary (list $values.data.source.url) list (has "source" .)) $url }}
{{- if regexMatch "^(web)?hdfs://" . }}
{{- $hadoop = append $hadoop . }}
{{- end }}
{{- end }}
{{- if $hadoop }}
{{- $edges = append $edges (include "elastic-ctr.network.outside" (prepend $hadoop $values.networkPolicy.hdfs)) }}
{{- end }}
{{- join "\n" $edges }}
{{- end }}

{{/* Egress to cube-transfer, in this release or elsewhere, where there is one; $ */}}
{{- define "elastic-ctr.network.transfer" -}}
{{- if .Values.cubeTransfer.enabled }}
{{- include "elastic-ctr.network.to" (list . (list "cube-transfer") (list .Values.cubeTransfer.config.port)) }}
{{- else if .Values.cubeTransfer.address -}}
# Elsewhere, so it is known by its port alone.
- ports: {{- include "elastic-ctr.network.ports" (list (splitList ":" .Values.cubeTransfer.address | last)) | nindent 4 }}
{{- end }}
{{- end }}

{{/* Egress to tracking where there is one; $ */}}
{{- define "elastic-ctr.network.tracking" -}}
{{- if .Values.tracking.enabled }}
{{- include "elastic-ctr.network.to" (list . (list "tracking") (list .Values.tracking.service.port)) }}
{{- end }}
{{- end }}
