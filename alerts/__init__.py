"""SLOs, burn rates, incidents, and their delivery: who is told, when, and which stage is to blame."""
