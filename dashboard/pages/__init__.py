"""Pages of the dashboard: one module for each page, with its data and its layout."""
