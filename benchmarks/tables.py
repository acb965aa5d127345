"""Tables of text: a title, a row of names, numbers to the right."""

from __future__ import annotations

LEFT, RIGHT = 44, 12


class Table:
    def __init__(self, title: str, *columns: str) -> None:
        self._title = title
        self._rows: list[tuple[str, tuple[str, ...]]] = [("", columns)]

    def row(self, name: str, *cells: str) -> None:
        self._rows.append((name, cells))

    def note(self, name: str, text: str) -> None:
        """Add a row without numbers, and why it has none."""
        self._rows.append((f"{name:<{LEFT}}  {text}", ()))

    def print(self) -> None:
        columns = len(self._rows[0][1])
        widths = [max(RIGHT, *(len(cells[at]) + 2 for _, cells in self._rows if cells)) for at in range(columns)]
        lines = [
            f"  {name:<{LEFT}}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=False))
            for name, cells in self._rows
        ]
        print("\n".join([self._title, *lines]), end="\n\n", flush=True)
