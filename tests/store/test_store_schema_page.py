"""The schema that the documentation shows is the one there is."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Table, UniqueConstraint

from wharfinger.store.tables import metadata

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def row(table: Table) -> str:
    """A table's line on the page: name, columns, keys."""
    keys = [f"primary key ({', '.join(column.name for column in table.primary_key)})"]
    uniques = [item for item in table.constraints if isinstance(item, UniqueConstraint)]
    keys += sorted(f"unique ({', '.join(item.columns.keys())})" for item in uniques)
    keys += sorted(f"index ({', '.join(item.columns.keys())})" for item in table.indexes)
    keys += sorted(
        f"{key.parent.name} → {key.target_fullname}" + (" (deleted with it)" if key.ondelete else "")
        for key in table.foreign_keys
    )
    return f"| `{table.name}` | {', '.join(table.columns.keys())} | {'; '.join(keys)} |"


def test_the_page_lists_every_table_column_and_key() -> None:
    expected = [row(metadata.tables[name]) for name in sorted(metadata.tables)]
    assert [line for line in PAGE.read_text().splitlines() if line.startswith("| `")] == expected
