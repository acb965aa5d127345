"""Tables of text: a title, a row of names, numbers to the right."""

from __future__ import annotations

LEFT, RIGHT = 44, 12


class Table:
    """Rows that are printed together.

    Args:
        title: What was measured, and how.
        columns: The names of the columns after the first.
    """

    def __init__(self, title: str, *columns: str) -> None:
        self._lines = [title, _line("", columns)]

    def row(self, name: str, *cells: str) -> None:
        """Add a row."""
        self._lines.append(_line(name, cells))

    def note(self, name: str, text: str) -> None:
        """Add a row that has no numbers, and say why."""
        self._lines.append(f"  {name:<{LEFT}}  {text}")

    def print(self) -> None:
        """Write it out."""
        print("\n".join(self._lines), end="\n\n", flush=True)


def _line(name: str, cells: tuple[str, ...]) -> str:
    return f"  {name:<{LEFT}}" + "".join(f"{cell:>{RIGHT}}" for cell in cells)
