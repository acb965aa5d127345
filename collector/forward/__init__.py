"""Sending on what was received, to any OTLP endpoint."""
