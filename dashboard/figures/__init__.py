"""Charts as plain dicts: pure functions, frame in, Plotly figure out, colours as tokens (see `..tokens`)."""
