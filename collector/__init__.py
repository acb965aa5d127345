"""The collector: OTLP servers, validation and ingestion, scraping, import and forwarding."""
