"""Error budgets: how fast they burn, which tiers fire, and what is told about it."""
