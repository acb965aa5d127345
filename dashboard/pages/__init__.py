"""Pages of the dashboard: one module a page, with its data and its layout."""
