"""Dashboard: web pages over the queries of the store and the objectives of the alerts."""
