{{/* What values.schema.json cannot say, or not clearly. Nothing here repeats what may be a secret. */}}
{{- define "stagelens.check" -}}
{{- $named := dict
  "tokens.existingSecret" .Values.tokens.existingSecret
  "store.existingSecret" .Values.store.existingSecret
  "collector.tls.existingSecret" .Values.collector.tls.existingSecret
  "dashboard.users.existingSecret" .Values.dashboard.users.existingSecret }}
{{- range $key, $name := $named }}
{{- if not (regexMatch "^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$" $name) }}
{{- fail (printf "%s is not the name of a Secret (small letters, digits, dots and dashes). What is secret goes into one, made with kubectl create secret generic, and only its name comes here." $key) }}
{{- end }}
{{- end }}
{{- if eq .Values.mode "split" }}
{{- if not (and .Values.store.existingSecret .Values.store.databaseKey) }}
{{- fail "store.existingSecret is not given, and mode: split keeps everything in a PostgreSQL. Make a Secret with its DSN:\n    kubectl create secret generic stagelens-store --from-literal=database='postgresql://user:password@host/database'\nand set store.existingSecret=stagelens-store; or take mode: single, which keeps an SQLite file on a volume." }}
{{- end }}
{{- else if .Values.collector.autoscaling.enabled }}
{{- fail "collector.autoscaling is enabled, and mode: single is one pod. Set mode: split, or collector.autoscaling.enabled=false." }}
{{- end }}
{{- if and .Values.store.pointsKey (not .Values.store.existingSecret) }}
{{- fail "store.pointsKey names a key, and store.existingSecret no Secret that has it. Name the Secret with the DSN of ClickHouse there." }}
{{- end }}
{{- $size := regexFind "^[0-9]+Gi$" .Values.store.volume.size | trimSuffix "Gi" | int }}
{{- $budget := regexFind "^[0-9]+GiB$" .Values.store.budget | trimSuffix "GiB" | int }}
{{- if and (include "stagelens.onSqlite" .) $size $budget (gt (mul $budget 10) (mul $size 9)) }}
{{- fail (printf "store.budget is %s, and the volume of %s would be full before it is reached. Give at most nine tenths of store.volume.size." .Values.store.budget .Values.store.volume.size) }}
{{- end }}
{{- $config := fromYaml .Values.collector.config }}
{{- $access := kindIs "map" $config.access | ternary $config.access dict }}
{{- $tls := kindIs "map" $access.tls | ternary $access.tls dict }}
{{- if or (hasKey $config "Error") (and $config.access (not $access)) (and $access.tls (not $tls)) }}
{{- fail "collector.config is not a YAML file with access:, rules: and scrape:. Set it with --set-file collector.config=collector.yaml, and check it with: stagelens collector --check" }}
{{- end }}
{{- range $token := kindIs "slice" $access.tokens | ternary $access.tokens list }}
{{- if and (kindIs "map" $token) (hasKey $token "token") }}
{{- fail "collector.config has a token in it, and a ConfigMap is no place for a secret. Put it into a Secret, name that in collector.secretFiles, and write token_file: /etc/stagelens/secrets/<Secret>/<key>." }}
{{- end }}
{{- end }}
{{- if regexMatch `(?im)^[^#\n]*\bauthorization["']?:[ \t]*[^ \t\n{#]` .Values.collector.config }}
{{- fail "collector.config has the value of a header Authorization in it, and a ConfigMap is no place for a secret. Put it into a Secret, name that in collector.secretFiles, and write Authorization: {file: /etc/stagelens/secrets/<Secret>/<key>} under forward:, bearer_token_file: under scrape:." }}
{{- end }}
{{- if and (eq .Values.collector.access "file") (not (or $access.tokens $access.certificates $tls.client_ca)) }}
{{- fail "collector.access is file, and collector.config has no authentication. Set access.tokens or access.tls.client_ca in it (docs/security.md), or set collector.access to token, or to open." }}
{{- end }}
{{- if and .Values.collector.tls.existingSecret (not $tls) }}
{{- fail "collector.tls.existingSecret is given, and collector.config does not use it. Write into that file:\n    access:\n      tls: {certificate: /etc/stagelens/tls/tls.crt, key: /etc/stagelens/tls/tls.key}" }}
{{- end }}
{{- if and $tls (not .Values.collector.tls.existingSecret) }}
{{- fail "collector.config speaks TLS (access.tls), and collector.tls.existingSecret names no Secret with a certificate. It is mounted as /etc/stagelens/tls." }}
{{- end }}
{{- range splitList "\n---" .Values.alerts.slo }}
{{- $document := fromYaml . }}
{{- $channels := kindIs "slice" $document.channels | ternary $document.channels list }}
{{- if or (hasKey $document "Error") (and $document.channels (not $channels)) }}
{{- fail "alerts.slo is not a YAML file of objectives and channels. Set it with --set-file alerts.slo=slo.yaml, and check it with: stagelens check slo.yaml" }}
{{- end }}
{{- range $channel := $channels }}
{{- range $key := list "token" "webhook_url" "routing_key" "password" "secret" "signing_secret" "webhook_secret" }}
{{- if and (kindIs "map" $channel) (hasKey $channel $key) }}
{{- fail (printf "alerts.slo has a %s in it, and a ConfigMap is no place for a secret. Put it into a Secret, name that in alerts.secretFiles, and write %s_file: /etc/stagelens/secrets/<Secret>/<key>." $key $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if and (eq .Values.dashboard.access "users") (not .Values.dashboard.users.existingSecret) }}
{{- fail "dashboard.access is users, and dashboard.users.existingSecret names no Secret with them:\n    stagelens dashboard --add-user ada   # writes the file that STAGELENS_DASHBOARD_USERS names\n    kubectl create secret generic stagelens-users --from-file=users.txt" }}
{{- end }}
{{- if and (eq .Values.dashboard.access "proxy") (not .Values.dashboard.proxy.trusted) }}
{{- fail "dashboard.access is proxy, and any client can send its header. Name the proxy in dashboard.proxy.trusted, such as 10.0.0.0/24, or 127.0.0.1 for a sidecar." }}
{{- end }}
{{- if and .Values.dashboard.ingress.enabled (not .Values.dashboard.ingress.host) }}
{{- fail "dashboard.ingress.host is not given: the dashboard has a host of its own, such as stagelens.example.com." }}
{{- end }}
{{- if and .Values.dashboard.sidecars (eq .Values.dashboard.service.targetPort "http") }}
{{- fail "dashboard.sidecars stand beside the dashboard, and the Service leads past them. Set dashboard.service.targetPort to the name of the port of the one in front." }}
{{- end }}
{{- end }}
