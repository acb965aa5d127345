"""Detection of latency regressions: compares the tail of each series with its own baseline."""
