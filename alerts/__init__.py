"""SLOs, burn rates, latency regressions, incidents, and the delivery of notifications."""
