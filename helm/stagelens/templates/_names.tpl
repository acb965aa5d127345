{{- define "stagelens.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "stagelens.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "stagelens.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "stagelens.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* What a Service or a policy finds pods by. Takes (list root part). */}}
{{- define "stagelens.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "stagelens.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ eq $root.Values.mode "single" | ternary "single" (index . 1) }}
{{- end }}

{{/* Takes (list root part). */}}
{{- define "stagelens.labels" -}}
{{ include "stagelens.selector" . }}
{{- $root := index . 0 }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Takes (list image version). */}}
{{- define "stagelens.image" -}}
{{- $image := index . 0 -}}
{{- if $image.digest }}{{ $image.repository }}@{{ $image.digest }}{{ else }}{{ $image.repository }}:{{ $image.tag | default (index . 1) }}{{ end }}
{{- end }}

{{/* Whether everything is in an SQLite file: "true" or nothing. */}}
{{- define "stagelens.onSqlite" -}}
{{- if and (eq .Values.mode "single") (or (not .Values.store.existingSecret) (not .Values.store.databaseKey)) }}true{{ end }}
{{- end }}

{{- define "stagelens.collectorScheme" -}}
{{ .Values.collector.tls.existingSecret | empty | ternary "http" "https" }}
{{- end }}

{{- define "stagelens.collectorUrl" -}}
{{ include "stagelens.collectorScheme" . }}://{{ include "stagelens.fullname" . }}-collector.{{ .Release.Namespace }}.svc:4318
{{- end }}

{{/* Where people find the dashboard, or nothing. */}}
{{- define "stagelens.dashboardUrl" -}}
{{- $ingress := .Values.dashboard.ingress -}}
{{- if .Values.dashboard.url }}{{ .Values.dashboard.url }}
{{- else if $ingress.enabled }}{{ $ingress.tlsSecret | empty | ternary "http" "https" }}://{{ $ingress.host }}
{{- end }}
{{- end }}

{{/* What is shown to the collector, {secret, key}; empty where nothing is. Takes (list root given). */}}
{{- define "stagelens.collectorToken" -}}
{{- $values := (index . 0).Values -}}
{{- $given := index . 1 -}}
{{- if or $given.secret (eq $values.collector.access "token") -}}
secret: {{ $given.secret | default $values.tokens.existingSecret | quote }}
key: {{ $given.key | default $values.tokens.collectorKey | quote }}
{{- end }}
{{- end }}
