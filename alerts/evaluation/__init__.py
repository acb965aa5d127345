"""Evaluation of SLOs: counts, burn rates, alert rules, and the evidence that notifications show."""
