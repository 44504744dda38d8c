"""Model ids as people type them. On the wire they are case-sensitive; here a different case is forgiven."""

from __future__ import annotations

from collections.abc import Iterable

from wharfinger.cli.client import Client
from wharfinger.cli.output import say


def same_but_for_case(model: str, known: Iterable[str]) -> str:
    """The one known id that differs from ``model`` only in case, said on stderr; otherwise ``model`` itself."""
    ids = set(known)
    if model in ids:
        return model
    found = [each for each in ids if each.casefold() == model.casefold()]
    if len(found) != 1:
        return model
    say(f"taking {found[0]} for {model}")
    return found[0]


def catalog_id(client: Client, model: str) -> str:
    """The catalog's id that was meant. An unknown one is returned as it is: the control plane names the closest."""
    return same_but_for_case(model, (entry["id"] for entry in client.get("/models")["data"]))
