"""``keys list``, ``create`` and ``revoke``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wharfinger.cli.client import Client
from wharfinger.cli.output import Format, emit

if TYPE_CHECKING:
    from rich.console import Console


def list_keys(output: Format) -> None:
    """List keys."""
    document = Client().get("/api/v1/keys")

    def human(out: Console) -> None:
        from rich.table import Table

        table = Table("key id", "name", "role", "created", "revoked", box=None)
        for key in document["keys"]:
            table.add_row(
                key["key_id"], key["name"], key["role"], key["created_at"], key["revoked_at"] or "-"
            )
        out.print(table)

    emit(output, document, human)


def create_key(name: str, role: str, output: Format) -> None:
    """Make a key and show its secret once."""
    document = Client().post("/api/v1/keys", {"name": name, "role": role})
    emit(output, document, lambda out: out.print(f"{document['key']}\n(shown once; role {document['role']})"))


def revoke_key(key_id: str, output: Format) -> None:
    """Revoke a key."""
    document = Client().delete(f"/api/v1/keys/{key_id}")
    emit(output, document, lambda out: out.print(f"{key_id} is revoked"))
