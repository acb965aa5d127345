"""Slower than before: two distributions compared at their tail, with the stage to blame."""
