"""HTTP server of the dashboard: application, routing, authentication, API, first paint and reports."""
