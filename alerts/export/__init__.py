"""Export for other tools: Prometheus rules and a Grafana dashboard over the collector's /metrics."""
