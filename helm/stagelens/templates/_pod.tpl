{{/* The template of a pod. Takes a dict: root, part (its name), parts (what runs in it), command, resources, grace (seconds). */}}
{{- define "stagelens.pod" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
{{- $parts := .parts -}}
{{- $hasDashboard := has "dashboard" $parts -}}
{{- $readsSlos := and $values.alerts.slo (or (has "alerts" $parts) $hasDashboard) -}}
{{- $volumes := include "stagelens.volumes" (list $root $parts) | fromYamlArray -}}
metadata:
  labels:
    {{- include "stagelens.labels" (list $root .part) | nindent 4 }}
    {{- with $values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    {{- /* What changes rolls the pods: a file with a mistake then stops at the first new one, and the old ones go on. */}}
    {{- if and $values.collector.config (has "collector" $parts) }}
    checksum/collector: {{ sha256sum $values.collector.config }}
    {{- end }}
    {{- if $readsSlos }}
    checksum/alerts: {{ sha256sum $values.alerts.slo }}
    {{- end }}
    {{- if and $values.dashboard.prices $hasDashboard }}
    checksum/pages: {{ sha256sum $values.dashboard.prices }}
    {{- end }}
    {{- if and $values.dashboard.roles $hasDashboard }}
    checksum/roles: {{ sha256sum $values.dashboard.roles }}
    {{- end }}
    kubectl.kubernetes.io/default-container: stagelens
    {{- with $values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  automountServiceAccountToken: false
  # With them a Service called stagelens-collector would set STAGELENS_COLLECTOR_PORT to an address.
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ .grace }}
  {{- with $values.image.pullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if ne .part "single" }}
  topologySpreadConstraints:
    {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "stagelens.selector" (list $root $.part) | nindent 10 }}
    {{- end }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    {{- if not $values.openshift }}
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    {{- end }}
    seccompProfile: { type: RuntimeDefault }
  containers:
    - name: stagelens
      image: {{ include "stagelens.image" (list $values.image $root.Chart.AppVersion) | quote }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      args: [{{ .command }}]
      env:
        {{- include "stagelens.env" (list $root $parts) | trim | nindent 8 }}
      securityContext: {{- include "stagelens.containerSecurity" . | nindent 8 }}
      resources: {{- toYaml .resources | nindent 8 }}
      {{- if has "collector" $parts }}
      ports:
        - { name: otlp-http, containerPort: 4318 }
        - { name: otlp-grpc, containerPort: 4317 }
        {{- if $hasDashboard }}
        - { name: http, containerPort: 8600 }
        {{- end }}
      {{- include "stagelens.probes" (list "otlp-http" (include "stagelens.collectorScheme" $root | upper)) | nindent 6 }}
      {{- /* Until every node knows that this pod is going, senders still come: they find it open. */}}
      lifecycle: { preStop: { exec: { command: [sleep, "5"] } } }
      {{- else if $hasDashboard }}
      ports:
        - { name: http, containerPort: 8600 }
      {{- include "stagelens.probes" (list "http" "HTTP") | nindent 6 }}
      lifecycle: { preStop: { exec: { command: [sleep, "5"] } } }
      {{- else }}
      ports:
        - { name: metrics, containerPort: 9464 }
      {{- include "stagelens.probes" (list "metrics" "HTTP") | nindent 6 }}
      {{- end }}
      volumeMounts:
        {{- range $volumes }}
        - { name: {{ .name }}, mountPath: {{ .at }}{{ if hasPrefix "/etc/" .at }}, readOnly: true{{ end }} }
        {{- end }}
    {{- if $hasDashboard }}
    {{- range $values.dashboard.sidecars }}
    - {{ toYaml (mergeOverwrite (dict "securityContext" (include "stagelens.containerSecurity" $ | fromYaml)) .) | nindent 6 | trim }}
    {{- end }}
    {{- end }}
  volumes:
    {{- range $volumes }}
    - {{ omit . "at" | toYaml | nindent 6 | trim }}
    {{- end }}
{{- end }}

{{/* What some of the parts have mounted, and at which place. Takes (list root parts). */}}
{{- define "stagelens.volumes" -}}
{{- $root := index . 0 -}}
{{- $parts := index . 1 -}}
{{- $values := $root.Values -}}
{{- $name := include "stagelens.fullname" $root -}}
- { name: tmp, at: /tmp, emptyDir: { sizeLimit: 256Mi } }
{{- if include "stagelens.onSqlite" $root }}
- { name: data, at: /data, persistentVolumeClaim: { claimName: {{ $values.store.volume.existingClaim | default (printf "%s-data" $name) | quote }} } }
{{- end }}
{{- if has "collector" $parts }}
{{- if $values.collector.config }}
- { name: collector, at: /etc/stagelens/collector, configMap: { name: {{ $name }}-collector } }
{{- end }}
{{- with $values.collector.tls.existingSecret }}
- { name: tls, at: /etc/stagelens/tls, secret: { secretName: {{ . | quote }}, defaultMode: 0440 } }
{{- end }}
{{- end }}
{{- if and $values.alerts.slo (or (has "alerts" $parts) (has "dashboard" $parts)) }}
- { name: alerts, at: /etc/stagelens/alerts, configMap: { name: {{ $name }}-alerts } }
{{- end }}
{{- if has "dashboard" $parts }}
{{- if $values.dashboard.prices }}
- { name: pages, at: /etc/stagelens/pages, configMap: { name: {{ $name }}-pages } }
{{- end }}
{{- if $values.dashboard.roles }}
- { name: roles, at: /etc/stagelens/roles, configMap: { name: {{ $name }}-roles } }
{{- end }}
{{- if eq $values.dashboard.access "users" }}
- { name: users, at: /etc/stagelens/users, secret: { secretName: {{ $values.dashboard.users.existingSecret | quote }}, defaultMode: 0440 } }
{{- end }}
{{- end }}
{{- range include "stagelens.secretFiles" . | fromYamlArray }}
- { name: secret-{{ . }}, at: /etc/stagelens/secrets/{{ . }}, secret: { secretName: {{ . | quote }}, defaultMode: 0440 } }
{{- end }}
{{- end }}

{{- define "stagelens.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: { drop: [ALL] }
{{- end }}

{{/* Takes (list port scheme). A schema is brought up to date before anything listens: that may take ten minutes. */}}
{{- define "stagelens.probes" -}}
{{- $port := index . 0 -}}
{{- $scheme := index . 1 -}}
startupProbe: { httpGet: { path: /livez, port: {{ $port }}, scheme: {{ $scheme }} }, periodSeconds: 2, timeoutSeconds: 5, failureThreshold: 300 }
livenessProbe: { httpGet: { path: /livez, port: {{ $port }}, scheme: {{ $scheme }} }, periodSeconds: 10, timeoutSeconds: 5, failureThreshold: 6 }
readinessProbe: { httpGet: { path: /readyz, port: {{ $port }}, scheme: {{ $scheme }} }, periodSeconds: 5, timeoutSeconds: 5, failureThreshold: 2 }
{{- end }}
