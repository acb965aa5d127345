"""HTTP side of the dashboard: application, routing, authentication, API, first paint and report."""
