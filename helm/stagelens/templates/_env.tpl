{{/* The environment of a container that runs some of the parts. Takes (list root parts). */}}
{{- define "stagelens.env" -}}
{{- $root := index . 0 -}}
{{- $parts := index . 1 -}}
{{- $values := $root.Values -}}
{{- $store := $values.store -}}
{{- if include "stagelens.onSqlite" $root }}
- { name: STAGELENS_DATABASE, value: "sqlite:////data/stagelens.db" }
{{- else }}
- { name: STAGELENS_DATABASE, valueFrom: { secretKeyRef: { name: {{ $store.existingSecret | quote }}, key: {{ $store.databaseKey | quote }} } } }
{{- end }}
{{- with $store.pointsKey }}
- { name: STAGELENS_POINTS, valueFrom: { secretKeyRef: { name: {{ $store.existingSecret | quote }}, key: {{ . | quote }} } } }
{{- end }}
- { name: STAGELENS_STORAGE_BUDGET, value: {{ $store.budget | quote }} }
- { name: STAGELENS_RETENTION_10S, value: {{ $store.retention.tier10s | quote }} }
- { name: STAGELENS_RETENTION_1M, value: {{ $store.retention.tier1m | quote }} }
- { name: STAGELENS_RETENTION_1H, value: {{ $store.retention.tier1h | quote }} }
- { name: STAGELENS_RETENTION_TRACES, value: {{ $store.retention.traces | quote }} }
{{- with include "stagelens.dashboardUrl" $root }}
- { name: STAGELENS_DASHBOARD_URL, value: {{ . | quote }} }
{{- end }}
{{- if has "collector" $parts }}
- { name: STAGELENS_COLLECTOR_HOST, value: "0.0.0.0" }
- { name: STAGELENS_COLLECTOR_PORT, value: "4318" }
- { name: STAGELENS_COLLECTOR_GRPC_PORT, value: "4317" }
{{- if eq $values.collector.access "token" }}
- { name: STAGELENS_COLLECTOR_TOKEN, valueFrom: { secretKeyRef: { name: {{ $values.tokens.existingSecret | quote }}, key: {{ $values.tokens.collectorKey | quote }} } } }
{{- end }}
{{- if eq $values.collector.access "open" }}
- { name: STAGELENS_COLLECTOR_OPEN, value: "true" }
{{- end }}
{{- if $values.collector.config }}
- { name: STAGELENS_COLLECTOR_CONFIG, value: /etc/stagelens/collector/collector.yaml }
{{- end }}
{{- end }}
{{- if has "dashboard" $parts }}
{{- $dashboard := $values.dashboard }}
- { name: STAGELENS_DASHBOARD_HOST, value: "0.0.0.0" }
- { name: STAGELENS_DASHBOARD_PORT, value: "8600" }
{{- if eq $dashboard.access "token" }}
- { name: STAGELENS_DASHBOARD_TOKEN, valueFrom: { secretKeyRef: { name: {{ $values.tokens.existingSecret | quote }}, key: {{ $values.tokens.dashboardKey | quote }} } } }
{{- else if eq $dashboard.access "users" }}
- { name: STAGELENS_DASHBOARD_USERS, value: {{ printf "/etc/stagelens/users/%s" $dashboard.users.key | quote }} }
{{- else }}
- { name: STAGELENS_DASHBOARD_PROXY_HEADER, value: {{ $dashboard.proxy.header | quote }} }
{{- with $dashboard.proxy.groupsHeader }}
- { name: STAGELENS_DASHBOARD_PROXY_GROUPS_HEADER, value: {{ . | quote }} }
{{- end }}
{{- end }}
{{- with $dashboard.proxy.trusted }}
- { name: STAGELENS_DASHBOARD_TRUSTED_PROXIES, value: {{ join "," . | quote }} }
{{- end }}
{{- with concat ($dashboard.ingress.enabled | ternary (list $dashboard.ingress.host) list) $dashboard.hosts | uniq }}
- { name: STAGELENS_DASHBOARD_HOSTS, value: {{ join "," . | quote }} }
{{- end }}
{{- if $dashboard.roles }}
- { name: STAGELENS_DASHBOARD_ACCESS, value: /etc/stagelens/roles/access.yaml }
{{- end }}
{{- if $dashboard.prices }}
- { name: STAGELENS_PRICES, value: /etc/stagelens/pages/prices.yaml }
{{- end }}
{{- end }}
{{- if not (has "collector" $parts | or (has "dashboard" $parts)) }}
- { name: STAGELENS_ALERTS_METRICS_HOST, value: "0.0.0.0" }
- { name: STAGELENS_ALERTS_METRICS_PORT, value: "9464" }
{{- end }}
{{- if and $values.alerts.slo (or (has "alerts" $parts) (has "dashboard" $parts)) }}
- { name: STAGELENS_SLO_FILE, value: /etc/stagelens/alerts/slo.yaml }
{{- end }}
{{- range $name, $value := $values.settings }}
{{- /* Helm reads every number as a float, which would be written 1e+06. */}}
- { name: {{ $name }}, value: {{ kindIs "float64" $value | ternary (int64 $value) $value | toString | quote }} }
{{- end }}
{{- range include "stagelens.secretEnv" . | fromYamlArray }}
- { name: {{ .name | quote }}, valueFrom: { secretKeyRef: { name: {{ .secret | quote }}, key: {{ .key | quote }} } } }
{{- end }}
{{- end }}

{{/* The secrets that parts read from their environment. The dashboard reads the SLO file, too, for what is signed with them. */}}
{{- define "stagelens.secretEnv" -}}
{{- $values := (index . 0).Values -}}
{{- $parts := index . 1 -}}
{{- $found := list -}}
{{- if has "collector" $parts }}{{ $found = concat $found $values.collector.secretEnv }}{{ end -}}
{{- if or (has "alerts" $parts) (has "dashboard" $parts) }}{{ $found = concat $found $values.alerts.secretEnv }}{{ end -}}
{{- toYaml ($found | uniq) }}
{{- end }}

{{/* The Secrets that are mounted as folders. */}}
{{- define "stagelens.secretFiles" -}}
{{- $values := (index . 0).Values -}}
{{- $parts := index . 1 -}}
{{- $found := $values.store.secretFiles -}}
{{- if has "collector" $parts }}{{ $found = concat $found $values.collector.secretFiles }}{{ end -}}
{{- if or (has "alerts" $parts) (has "dashboard" $parts) }}{{ $found = concat $found $values.alerts.secretFiles }}{{ end -}}
{{- toYaml ($found | uniq) }}
{{- end }}
