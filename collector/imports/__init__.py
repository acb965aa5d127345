"""Import of files with measurements: each format becomes OTLP spans or points, which are processed like live data."""
