"""``keys list``, ``create`` and ``revoke``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wharfinger.cli.client import Client, path_of
from wharfinger.cli.output import Format, emit
from wharfinger.cli.tables import Column, print_table

if TYPE_CHECKING:
    from rich.console import Console


def list_keys(output: Format) -> None:
    """List keys."""
    document = Client().get("/api/v1/keys")

    def human(out: Console) -> None:
        print_table(
            out,
            (
                Column("key id", whole=True),
                Column("name"),
                Column("role"),
                Column("created"),
                Column("revoked"),
            ),
            [
                (
                    key["key_id"],
                    key["name"],
                    key["role"],
                    _minute(key["created_at"]),
                    _minute(key["revoked_at"]) if key["revoked_at"] else "-",
                )
                for key in document["keys"]
            ],
        )

    emit(output, document, human)


def create_key(name: str, role: str, output: Format) -> None:
    """Make a key and show its secret once."""
    document = Client().post("/api/v1/keys", {"name": name, "role": role})
    emit(output, document, lambda out: out.print(f"{document['key']}\n(shown once; role {document['role']})"))


def revoke_key(key_id: str, output: Format) -> None:
    """Revoke a key."""
    document = Client().delete(f"/api/v1/keys/{path_of(key_id)}")
    emit(output, document, lambda out: out.print(f"{key_id} is revoked"))


def _minute(timestamp: str) -> str:
    """An ISO 8601 time in UTC, to the minute."""
    return timestamp[:16].replace("T", " ")
