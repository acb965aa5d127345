"""Latency histograms for Prometheus, classic and native, on /metrics."""
