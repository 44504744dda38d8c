"""The schema that the documentation shows is the one there is."""

from __future__ import annotations

from pathlib import Path

from wharfinger.store.tables import metadata

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def test_the_page_lists_every_table_and_column() -> None:
    columns = {name: ", ".join(table.columns.keys()) for name, table in metadata.tables.items()}
    expected = [f"| `{name}` | {columns[name]} |" for name in sorted(columns)]
    assert [line for line in PAGE.read_text().splitlines() if line.startswith("| `")] == expected
