"""Outbound calls of the server: the egress allow-list, TLS verification and the checked HTTP transport."""
