"""The agent of one process: aggregates finished requests, samples traces, governs its own cost, and exports."""
