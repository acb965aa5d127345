"""Prometheus expositions and statistics of inference servers, read again and again, as points of the same stages."""
