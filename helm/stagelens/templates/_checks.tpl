{{/* Checks that values.schema.json cannot express clearly. Messages never contain values that may be secret. */}}
{{- define "stagelens.check" -}}
{{- $named := dict
  "tokens.existingSecret" .Values.tokens.existingSecret
  "store.existingSecret" .Values.store.existingSecret
  "collector.tls.existingSecret" .Values.collector.tls.existingSecret
  "dashboard.users.existingSecret" .Values.dashboard.users.existingSecret }}
{{- range $key, $name := $named }}
{{- if not (regexMatch "^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$" $name) }}
{{- fail (printf "%s is not the name of a Secret (small letters, digits, dots and dashes). Create a Secret with kubectl create secret generic, and set its name here." $key) }}
{{- end }}
{{- end }}
{{- if eq .Values.mode "split" }}
{{- if not (and .Values.store.existingSecret .Values.store.databaseKey) }}
{{- fail "store.existingSecret is not set, but mode: split needs a PostgreSQL database. Create a Secret with its DSN:\n    kubectl create secret generic stagelens-store --from-literal=database='postgresql://user:password@host/database'\nand set store.existingSecret=stagelens-store; or use mode: single, which stores data in an SQLite file on a volume." }}
{{- end }}
{{- else if .Values.collector.autoscaling.enabled }}
{{- fail "collector.autoscaling is enabled, but mode: single runs one pod. Set mode: split, or collector.autoscaling.enabled=false." }}
{{- end }}
{{- if and .Values.store.pointsKey (not .Values.store.existingSecret) }}
{{- fail "store.pointsKey is set, but store.existingSecret is not. Set store.existingSecret to the Secret with the DSN of ClickHouse." }}
{{- end }}
{{- $size := regexFind "^[0-9]+Gi$" .Values.store.volume.size | trimSuffix "Gi" | int }}
{{- $budget := regexFind "^[0-9]+GiB$" .Values.store.budget | trimSuffix "GiB" | int }}
{{- if and (include "stagelens.onSqlite" .) $size $budget (gt (mul $budget 10) (mul $size 9)) }}
{{- fail (printf "store.budget is %s, but the volume has only %s. Set at most 90 %% of store.volume.size." .Values.store.budget .Values.store.volume.size) }}
{{- end }}
{{- $config := fromYaml .Values.collector.config }}
{{- $access := kindIs "map" $config.access | ternary $config.access dict }}
{{- $tls := kindIs "map" $access.tls | ternary $access.tls dict }}
{{- if or (hasKey $config "Error") (and $config.access (not $access)) (and $access.tls (not $tls)) }}
{{- fail "collector.config is not a YAML file with access:, rules: and scrape:. Set it with --set-file collector.config=collector.yaml, and check it with: stagelens collector --check" }}
{{- end }}
{{- range $token := kindIs "slice" $access.tokens | ternary $access.tokens list }}
{{- if and (kindIs "map" $token) (hasKey $token "token") }}
{{- fail "collector.config contains a token, but a ConfigMap must not contain secrets. Put the token into a Secret, add the Secret to collector.secretFiles, and write token_file: /etc/stagelens/secrets/<Secret>/<key>." }}
{{- end }}
{{- end }}
{{- if regexMatch `(?im)^[^#\n]*\bauthorization["']?:[ \t]*[^ \t\n{#]` .Values.collector.config }}
{{- fail "collector.config contains the value of an Authorization header, but a ConfigMap must not contain secrets. Put the value into a Secret, add the Secret to collector.secretFiles, and write bearer_token_file: /etc/stagelens/secrets/<Secret>/<key> under scrape:." }}
{{- end }}
{{- if and (eq .Values.collector.access "file") (not (or $access.tokens $access.certificates $tls.client_ca)) }}
{{- fail "collector.access is file, but collector.config has no authentication. Set access.tokens or access.tls.client_ca in collector.config (docs/security.md), or set collector.access to token or open." }}
{{- end }}
{{- if and .Values.collector.tls.existingSecret (not $tls) }}
{{- fail "collector.tls.existingSecret is set, but collector.config does not use it. Add to collector.config:\n    access:\n      tls: {certificate: /etc/stagelens/tls/tls.crt, key: /etc/stagelens/tls/tls.key}" }}
{{- end }}
{{- if and $tls (not .Values.collector.tls.existingSecret) }}
{{- fail "collector.config uses TLS (access.tls), but collector.tls.existingSecret is not set. Set it to a Secret with a certificate; it is mounted as /etc/stagelens/tls." }}
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
{{- fail (printf "alerts.slo contains a %s, but a ConfigMap must not contain secrets. Put the value into a Secret, add the Secret to alerts.secretFiles, and write %s_file: /etc/stagelens/secrets/<Secret>/<key>." $key $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if and (eq .Values.dashboard.access "users") (not .Values.dashboard.users.existingSecret) }}
{{- fail "dashboard.access is users, but dashboard.users.existingSecret is not set. Create a Secret with the users file:\n    stagelens dashboard --add-user ada   # writes to the file STAGELENS_DASHBOARD_USERS\n    kubectl create secret generic stagelens-users --from-file=users.txt" }}
{{- end }}
{{- if and (eq .Values.dashboard.access "proxy") (not .Values.dashboard.proxy.trusted) }}
{{- fail "dashboard.access is proxy, but any client can send the header of the proxy. Set dashboard.proxy.trusted to the address of the proxy, such as 10.0.0.0/24, or 127.0.0.1 for a sidecar." }}
{{- end }}
{{- if and .Values.dashboard.ingress.enabled (not .Values.dashboard.ingress.host) }}
{{- fail "dashboard.ingress.host is not set. Set the host name of the dashboard, such as stagelens.example.com." }}
{{- end }}
{{- if and .Values.dashboard.sidecars (eq .Values.dashboard.service.targetPort "http") }}
{{- fail "dashboard.sidecars are set, but the Service bypasses them. Set dashboard.service.targetPort to the port name of the sidecar that receives requests." }}
{{- end }}
{{- end }}
