"""Forwarding of received exports to other OTLP endpoints."""
