{{/* The names of the release's objects begin so. */}}
{{- define "gpukernel.fullname" -}}
{{- $name := ternary .Release.Name (printf "%s-gpukernel" .Release.Name) (contains "gpukernel" .Release.Name) -}}
{{- $name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* Labels that select the pods of one part: (dict "root" . "part" "pool"). */}}
{{- define "gpukernel.selector" -}}
app.kubernetes.io/name: gpukernel
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "gpukernel.labels" -}}
{{ include "gpukernel.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{/* An image: (dict "root" . "which" "pool"). */}}
{{- define "gpukernel.image" -}}
{{- $image := index .root.Values.image .which -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* What every pod of ours is: an account of its own without rights. */}}
{{- define "gpukernel.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "gpukernel.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "gpukernel.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "gpukernel.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The groups of agents that have a schedule, as a list of their objects' kinds and names; empty: none. */}}
{{- define "gpukernel.scheduled" -}}
{{- range $name, $own := .Values.agents }}
{{- $group := mergeOverwrite (deepCopy $.Values.agentDefaults) ($own | default dict) }}
{{- if $group.schedule }}
- {kind: {{ lower $group.kind }}s, name: {{ include "gpukernel.fullname" $ }}-agent-{{ $name }}}
{{- end }}
{{- end }}
{{- end }}

{{/* The Secret with the address of the database; empty: SQLite. */}}
{{- define "gpukernel.databaseSecret" -}}
{{- if .Values.database.bundled.enabled -}}
{{ include "gpukernel.fullname" . }}-database
{{- else -}}
{{ .Values.database.secretName }}
{{- end -}}
{{- end }}

{{/* Look-ups of names, for every pod that asks somebody. */}}
{{- define "gpukernel.dns" -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
  to:
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}
{{- end }}

{{/* The API server, for the pods that ask it. */}}
{{- define "gpukernel.toTheApiServer" -}}
- ports:
    {{- range .Values.networkPolicy.apiServer.ports }}
    - {port: {{ int . }}, protocol: TCP}
    {{- end }}
  {{- with .Values.networkPolicy.apiServer.peers }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* What was said twice, or contradicts itself: a sentence each. */}}
{{- define "gpukernel.checks" -}}
{{- $values := .Values -}}
{{- if and $values.database.bundled.enabled $values.database.secretName -}}
{{- fail "database.bundled.enabled and database.secretName exclude each other: name one database." -}}
{{- end -}}
{{- if and (gt (int $values.pool.replicas) 1) (not (include "gpukernel.databaseSecret" .)) -}}
{{- fail (printf "pool.replicas is %d, and SQLite has room for one pool: name PostgreSQL with database.secretName, or try database.bundled.enabled." (int $values.pool.replicas)) -}}
{{- end -}}
{{- if and (eq $values.pool.clientCertificates "require") (not $values.pool.tls.enabled) -}}
{{- fail "pool.clientCertificates is “require”, which needs pool.tls.enabled." -}}
{{- end -}}
{{- range $name, $own := $values.agents -}}
{{- $group := mergeOverwrite (deepCopy $values.agentDefaults) ($own | default dict) -}}
{{- if gt (int $group.workerPorts.first) (int $group.workerPorts.last) -}}
{{- fail (printf "agents.%s.workerPorts begin at %d and end at %d: first is at most last." $name (int $group.workerPorts.first) (int $group.workerPorts.last)) -}}
{{- end -}}
{{- if and $group.simulate (or $group.resourceClaims $group.wholeGpus.deviceClassName) -}}
{{- fail (printf "agents.%s simulates GPUs and claims real ones: choose simulate, or resourceClaims and wholeGpus." $name) -}}
{{- end -}}
{{- if and $group.queue (ne $group.kind "Deployment") -}}
{{- fail (printf "agents.%s.queue is for a Deployment: Kueue admits no DaemonSet." $name) -}}
{{- end -}}
{{- if and $group.queue $group.wholeGpus.deviceClassName (not (int $group.wholeGpus.count)) -}}
{{- fail (printf "agents.%s.wholeGpus.count says how many GPUs Kueue counts, so it is not 0 with a queue." $name) -}}
{{- end -}}
{{- range $group.resourceClaims -}}
{{- if and (eq .name "whole-gpus") $group.wholeGpus.deviceClassName -}}
{{- fail (printf "agents.%s.resourceClaims has a claim named whole-gpus, which is the name of the one of wholeGpus." $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
