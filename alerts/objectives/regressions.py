"""Whose latency is watched for regressions: nobody's, unless the file says so; the search still alarms too often unasked."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.settings.yaml_fields import Fields


@dataclass(frozen=True, slots=True)
class Regressions:
    """Who is watched.

    Args:
        watched: Whether anybody is.
        ignored: The services that are not.
    """

    watched: bool = True
    ignored: frozenset[str] = frozenset()

    def watches(self, service: str) -> bool:
        """Say whether *service* is watched."""
        return self.watched and service not in self.ignored


def read(top: Fields) -> Regressions:
    """Read `regressions` of an SLO file: `on`, `off`, or `{ignore: [checkout]}`."""
    written = top.value("regressions")
    # YAML reads the words on and off as truth values.
    if written is None or isinstance(written, bool):
        return Regressions(watched=written is True)
    if not isinstance(written, dict):
        text = f"{top.name('regressions')} is {written!r}; write on, off, or `ignore: [checkout]` below it"
        top.complain(text, "regressions")
        return Regressions()
    fields = top.mapping("regressions", example="ignore: [checkout]")
    if fields is None:
        return Regressions()
    ignored = frozenset(fields.texts("ignore", example="checkout"))
    fields.finish()
    return Regressions(ignored=ignored)
