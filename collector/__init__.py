"""OTLP in, validation, the store and its queries."""
