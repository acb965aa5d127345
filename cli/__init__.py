"""The command line: arguments, `stagelens run` without a collector, and `stagelens compare`."""
