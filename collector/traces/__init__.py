"""Spans of any OpenTelemetry program, told apart by rules and put together to requests with their stages."""
