"""Definitions shared by the agent and the server: stages, wire names, histograms, settings, errors and egress."""
