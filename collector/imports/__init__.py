"""What was measured elsewhere, from files into the store: each format becomes spans or points, and goes the way of live data."""
