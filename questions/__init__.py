"""Questions that pages, API, client, MCP, CLI and messages ask of the store: one function each, with a typed result."""
