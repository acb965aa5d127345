"""The collector: OTLP servers, validation and ingestion, scraping and import."""
