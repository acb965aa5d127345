"""Incidents: life cycle, grouping, silences and history."""
