"""`stagelens bench`: measures the cost of the instrumentation on the user's own service, with and without it in alternation."""
