"""Search for latency regressions: statistics, scores, alarms and the stage that grew."""
