{{/*
NetworkPolicies: one policy denies all pods of the release everything but DNS; a policy for each component allows the edges of
docs/architecture.md, at both ends. Helpers take a dict with the keys that they name.
*/}}

{{/* Head of a component's policy; root, component, name */}}
{{- define "elastic-ctr.network.policy" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{- include "elastic-ctr.metadata" (dict "root" .root "component" .component "name" .name) | nindent 2 }}
spec:
  podSelector:
    matchLabels: {{- include "elastic-ctr.selectorLabels" (list .root .component) | nindent 6 }}
  policyTypes: [Ingress, Egress]
{{- end }}

{{/* Components of this release as peers; root, components */}}
{{- define "elastic-ctr.network.peers" -}}
{{- $peers := list }}
{{- range .components }}
{{- $peers = append $peers (dict "podSelector" (dict "matchLabels" (include "elastic-ctr.selectorLabels" (list $.root .) | fromYaml))) }}
{{- end }}
{{- toYaml $peers }}
{{- end }}

{{/* Clients: pods of this release with the component label `client`, and the peers in networkPolicy.clients; $ */}}
{{- define "elastic-ctr.network.clients" -}}
{{- include "elastic-ctr.network.peers" (dict "root" . "components" (list "client")) }}
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

{{/* Ports for predictions, as a list in YAML; $ */}}
{{- define "elastic-ctr.serving.ports" -}}
{{- $config := .Values.serving.config }}
{{- $ports := list (int $config.port) }}
{{- with int $config.grpcPort }}
{{- $ports = append $ports . }}
{{- end }}
{{- toYaml $ports }}
{{- end }}

{{/* Ingress of Prometheus; root, ports */}}
{{- define "elastic-ctr.network.prometheus" -}}
{{- with .root.Values.networkPolicy.prometheus -}}
- from: {{- toYaml . | nindent 4 }}
  ports: {{- include "elastic-ctr.network.ports" $.ports | nindent 4 }}
{{- end }}
{{- end }}

{{/* Egress to components; root, components, ports */}}
{{- define "elastic-ctr.network.to" -}}
- to: {{- include "elastic-ctr.network.peers" . | nindent 4 }}
  ports: {{- include "elastic-ctr.network.ports" .ports | nindent 4 }}
{{- end }}

{{/* Egress to Hadoop, Kafka, buckets, or an HTTP store outside the release, at the ports of the block and of the URLs; block, urls */}}
{{- define "elastic-ctr.network.outside" -}}
{{- $ports := list }}
{{- range .block.ports }}
{{- $ports = append $ports (int .) }}
{{- end }}
{{- range .urls }}
{{- /* The ports of an hdfs:// URL belong to Hadoop's own protocol; the roles use WebHDFS. */}}
{{- if not (hasPrefix "hdfs://" .) }}
{{- /* Without addresses of IPv6, whose groups are no ports. */}}
{{- range regexFindAll ":[0-9]+" (regexReplaceAll "\\[[^]]*\\]" (regexReplaceAll "^[a-z]+://([^/]*).*$" . "${1}") "") -1 }}
{{- $ports = append $ports (trimPrefix ":" . | int) }}
{{- end }}
{{- end }}
{{- end }}
- to:
  {{- range .block.cidrs }}
    - ipBlock:
        cidr: {{ . | quote }}
  {{- end }}
  ports: {{- include "elastic-ctr.network.ports" (uniq $ports) | nindent 4 }}
{{- end }}

{{/* Egress to the store, to the click logs where source is true, and to their stream where stream is; root, source, stream */}}
{{- define "elastic-ctr.network.store" -}}
{{- $values := .root.Values }}
{{- $url := $values.store.config.url | default "" }}
{{- $edges := list }}
{{- if not $url }}
{{- $edges = append $edges (include "elastic-ctr.network.to" (dict "root" .root "components" (list "file-server") "ports" (list $values.fileServer.service.port))) }}
{{- else if hasPrefix "http" $url }}
{{- $edges = append $edges (include "elastic-ctr.network.outside" (dict "block" $values.networkPolicy.store "urls" (list $url))) }}
{{- end }}
{{- $buckets := list }}
{{- /* The files of an Iceberg table are in a bucket, and its catalog is a server on the web. */}}
{{- if and .source (hasPrefix "iceberg" $values.data.source.url) }}
{{- $buckets = append (list (dig "endpoint" "" ($values.data.source.bucket | default dict) | default "")) (replace "iceberg+rest" "https" $values.data.source.url) }}
{{- end }}
{{- range prepend (.source | default false | ternary (list $values.data.source) list) $values.store.config }}
{{- if regexMatch "^(delta\\+)?(s3|gs|az)://" (.url | default "") }}
{{- $buckets = append $buckets (dig "endpoint" "" (.bucket | default dict) | default "") }}
{{- end }}
{{- end }}
{{- if $buckets }}
{{- $edges = append $edges (include "elastic-ctr.network.outside" (dict "block" $values.networkPolicy.store "urls" $buckets)) }}
{{- end }}
{{- $hadoop := list }}
{{- range prepend (.source | default false | ternary (list $values.data.source.url) list) $url }}
{{- if regexMatch "^(delta\\+)?(s?web)?hdfs://" . }}
{{- $hadoop = append $hadoop (trimPrefix "delta+" .) }}
{{- end }}
{{- end }}
{{- if $hadoop }}
{{- $edges = append $edges (include "elastic-ctr.network.outside" (dict "block" $values.networkPolicy.hdfs "urls" $hadoop)) }}
{{- if or $values.store.config.keytab (and .source $values.data.source.keytab) }}
{{- $edges = append $edges (include "elastic-ctr.network.kdc" .root) }}
{{- end }}
{{- end }}
{{- if .stream }}
{{- if or $values.intake.enabled (hasPrefix "intake://" $values.data.source.url) }}
{{- $edges = append $edges (include "elastic-ctr.network.intake" .root) }}
{{- else }}
{{- $edges = append $edges (include "elastic-ctr.network.kafka" .root) }}
{{- end }}
{{- end }}
{{- join "\n" (compact $edges) }}
{{- end }}

{{/* Egress to the KDC, which a client asks by UDP first; $ */}}
{{- define "elastic-ctr.network.kdc" -}}
{{- $kdc := .Values.networkPolicy.kdc -}}
- to:
  {{- range $kdc.cidrs }}
    - ipBlock:
        cidr: {{ . | quote }}
  {{- end }}
  ports:
  {{- range $kdc.ports }}
    - {port: {{ int . }}, protocol: UDP}
    - {port: {{ int . }}, protocol: TCP}
  {{- end }}
{{- end }}

{{/* Egress to the brokers of the click logs, if they are a topic; $ */}}
{{- define "elastic-ctr.network.kafka" -}}
{{- if hasPrefix "kafka://" .Values.data.source.url }}
{{- include "elastic-ctr.network.outside" (dict "block" .Values.networkPolicy.kafka "urls" (list .Values.data.source.url)) }}
{{- end }}
{{- end }}

{{/* Egress to the intake, of this release or of another; $ */}}
{{- define "elastic-ctr.network.intake" -}}
{{- if .Values.intake.enabled }}
{{- include "elastic-ctr.network.to" (dict "root" . "components" (list "intake") "ports" (list .Values.intake.config.port)) }}
{{- else -}}
# The intake of another release: only its port is known.
- ports: {{- include "elastic-ctr.network.ports" (list (splitList ":" .Values.data.source.url | last)) | nindent 4 }}
{{- end }}
{{- end }}

{{/* Egress to cube-transfer, in this release or elsewhere; $ */}}
{{- define "elastic-ctr.network.transfer" -}}
{{- if .Values.cubeTransfer.enabled }}
{{- include "elastic-ctr.network.to" (dict "root" . "components" (list "cube-transfer") "ports" (list .Values.cubeTransfer.config.port)) }}
{{- else if .Values.cubeTransfer.address -}}
# cube-transfer of another release: only its port is known.
- ports: {{- include "elastic-ctr.network.ports" (list (splitList ":" .Values.cubeTransfer.address | last)) | nindent 4 }}
{{- end }}
{{- end }}

{{/* Egress to tracking, where it is on; $ */}}
{{- define "elastic-ctr.network.tracking" -}}
{{- if .Values.tracking.enabled }}
{{- include "elastic-ctr.network.to" (dict "root" . "components" (list "tracking") "ports" (list .Values.tracking.service.port)) }}
{{- end }}
{{- end }}
