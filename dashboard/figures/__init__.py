"""Charts: pure functions from data frames to Plotly figures as plain dicts, with design tokens as colours."""
