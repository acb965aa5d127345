"""The same promises for others: rules for Prometheus and a dashboard for Grafana, over what the collector tells on /metrics."""
