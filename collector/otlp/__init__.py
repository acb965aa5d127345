"""OTLP messages: data model, protobuf and JSON decoding, columns, and responses."""
