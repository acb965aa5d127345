"""Export to the collector: OTLP bodies, delivery with retries, and spans for the user's own OpenTelemetry SDK."""
