"""Incidents: from the first finding to the end."""
