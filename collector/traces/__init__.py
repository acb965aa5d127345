"""Spans of any OpenTelemetry program: classified by rules and assembled into requests with their stages."""
