"""OTLP over HTTP and gRPC: servers, connection limits, authentication and access configuration."""
