"""Why nobody is watched, and the cure: whoever starts Stagelens without an SLO must not think that alerts would come."""

from __future__ import annotations

from .objectives.slo_file import LiveFile

# The smallest SLO file.
ONE_LINE = "slos: [{name: checkout-latency, service: checkout, objective: 0.99, threshold: 250ms, window: 30d}]"


def unwatched(file: LiveFile | None, *, example: str = ONE_LINE) -> tuple[str, str]:
    """Return why no SLO is in force with *file* as it was read last, and the cure; nothing and nothing where one is.

    >>> unwatched(None, example="slos: …")
    ('there is no slo.yaml', 'Write one where Stagelens starts, such as `slos: …`, and restart it')
    """
    such = f", such as `{example}`," if example else ""
    if file is None or file.path is None:
        return "there is no slo.yaml", f"Write one where Stagelens starts{such} and restart it"
    if file.current is not None and file.current.slos:
        return "", ""
    if file.errors:
        return (
            f"{file.path} cannot be read",
            f"`stagelens check {file.path}` says why; it is read again when it changes",
        )
    return f"{file.path} has no SLO", f"Add one{such} and it is read again"


def in_a_line(file: LiveFile | None) -> str:
    """Return the same as one line for a terminal; empty where an SLO is in force."""
    why, cure = unwatched(file)
    return f"nobody is watched: {why}. {cure}" if why else ""
