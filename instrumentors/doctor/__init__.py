"""`stagelens doctor`: what would be timed of a command, and what is in the way, before anything is changed.

A check is a small function in the table of `checks`; what it may look at is a `Inspection`. Nothing of the command is run, but
its interpreter, for a moment; with `--run` the command itself, for as long as that says. Nothing is sent but an export
without content, to learn whether the collector would take one.
"""
