"""Tables that keep their ids whole, and leave out what matters less where the window is narrow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

WIDE_COLUMNS = 100
_LEAST_TEXT = 8
_GAP = 2


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: str
    whole: bool = False
    """Ids and names that are copied into the next command: other columns give way first."""
    wide_only: bool = False
    """Left out below :data:`WIDE_COLUMNS`."""


def print_table(out: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under their columns. Nothing is ever cut: what does not fit goes on in the next line."""
    from rich.table import Table

    shown = [i for i, column in enumerate(columns) if out.width >= WIDE_COLUMNS or not column.wide_only]
    longest = {i: _longest(columns[i].name, [row[i] for row in rows]) for i in shown}
    room = out.width - sum(_GAP + (0 if columns[i].whole else min(longest[i], _LEAST_TEXT)) for i in shown)
    table = Table(box=None)
    for i in shown:
        on_one_line = columns[i].whole and longest[i] <= room
        if on_one_line:
            room -= longest[i]
        table.add_column(columns[i].name, no_wrap=on_one_line, overflow="fold")
    for row in rows:
        table.add_row(*(row[i] for i in shown))
    out.print(table)


def _longest(name: str, cells: Sequence[str]) -> int:
    from rich.cells import cell_len

    return max(cell_len(line) for cell in (name, *cells) for line in cell.splitlines() or [""])
