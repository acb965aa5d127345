"""`stagelens bench`: what it costs to be timed, on a service of the user's own, with and without in turns."""
