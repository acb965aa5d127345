"""Scraping of inference servers: Prometheus expositions and Triton statistics, read periodically and stored as stage metrics."""
