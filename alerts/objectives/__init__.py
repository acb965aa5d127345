"""Service level objectives: what they promise, and the file they are written in."""
