"""`stagelens doctor`: what of a command would be timed, and what prevents it, before anything is changed.

A check is a function in the table `command.CHECKS` that takes an `Inspection` and yields a `Finding` for each problem. Nothing
of the command is executed except its interpreter, for a moment; with `--run` the command itself, for the given time. Nothing is
sent except an empty export, to test whether the collector accepts one.
"""
