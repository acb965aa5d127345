"""Charts as plain dicts: pure functions from a data frame to a Plotly figure; colours are design tokens."""
