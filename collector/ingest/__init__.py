"""Ingestion of OTLP exports: from a request to a batch in the store."""
