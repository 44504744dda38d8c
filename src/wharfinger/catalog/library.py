"""The catalog of this installation: cards in the database, their parsed form in memory."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from sqlalchemy import Row, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from wharfinger.catalog.card import ModelCard
from wharfinger.catalog.card_files import card_of
from wharfinger.catalog.errors import CatalogConflict, CatalogError, NotRemovableError, UnknownModel
from wharfinger.store.database import Database
from wharfinger.store.tables import model_cards

__all__ = ["CardSource", "CatalogConflict", "CatalogEntry", "CatalogLibrary", "UnknownModel"]

_LIGHT = (
    model_cards.c.model_id,
    model_cards.c.digest,
    model_cards.c.source,
    model_cards.c.artifact_path,
    model_cards.c.created_at,
)
"""Everything but the card itself, which is only fetched when its digest is not in memory."""


class CardSource(StrEnum):
    """Where a card came from (the contract's ``catalog_source``)."""

    REGISTRY = "registry"
    INSTALLED = "installed"
    CUSTOM = "custom"


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A card this installation is authorised to run."""

    card: ModelCard
    source: str
    """One of :class:`CardSource`."""
    artifact_path: str | None
    """The file (the first part, or the checkpoint's folder) on the control plane's machine; ``None`` if elsewhere."""
    created_at: datetime


class CatalogLibrary:
    """The cards of this installation. Every method may raise the store's ``StoreUnavailable``."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._cards: dict[str, ModelCard] = {}

    async def list(self) -> list[CatalogEntry]:
        """Every entry, by model id."""
        async with self._database.read() as connection:
            rows = (await connection.execute(select(*_LIGHT).order_by(model_cards.c.model_id))).all()
        return await self._entries(rows)

    async def get(self, model_id: str) -> CatalogEntry:
        """The entry called ``model_id``.

        Raises:
            UnknownModel: there is none; its ``closest`` names the most similar ids.
        """
        async with self._database.read() as connection:
            rows = (await connection.execute(select(*_LIGHT).where(model_cards.c.model_id == model_id))).all()
            known = [] if rows else (await connection.execute(select(model_cards.c.model_id))).scalars().all()
        entries = await self._entries(rows)
        if not entries:
            raise UnknownModel(model_id, closest_ids(model_id, known))
        return entries[0]

    async def add_file(self, path: Path, model_id: str | None = None) -> ModelCard:
        """Read a GGUF file (or a folder with safetensors and ``config.json``) and add its card as custom.

        Args:
            path: The file or folder. It stays where it is.
            model_id: Name in the catalog; by default made from the name inside the file.

        Raises:
            ArtifactError: the file is no usable model (:class:`GgufError`, :class:`SafetensorsError`, …).
            CatalogConflict: the id is taken by another card.
        """
        path = Path(path).absolute()
        card = await asyncio.to_thread(card_of, path, model_id)
        entry = await self.add_card(card, CardSource.CUSTOM, path)
        return entry.card

    async def add_card(
        self, card: ModelCard, source: CardSource, artifact_path: Path | None = None
    ) -> CatalogEntry:
        """Store a card. Adding an equal card again gives the entry that is there, with the new path.

        An installed card replaces the installed one of the same id, because a newer release may read more from
        the same file.

        Raises:
            CatalogConflict: the id is taken by a card with another digest.
        """
        try:
            await self._store(card, source, artifact_path)
        except IntegrityError:  # another replica stored the same id between our look and our insert
            await self._store(card, source, artifact_path)
        return await self.get(card.model_id)

    async def remove(self, model_id: str) -> None:
        """Take a custom card out of the catalog; its file stays.

        Raises:
            UnknownModel: there is none.
            NotRemovableError: it is not a custom card.
        """
        entry = await self.get(model_id)
        if entry.source != CardSource.CUSTOM:
            raise NotRemovableError(model_id, entry.source)
        async with self._database.begin() as connection:
            await connection.execute(
                delete(model_cards).where(
                    model_cards.c.model_id == model_id, model_cards.c.digest == entry.card.digest
                )
            )

    async def _store(self, card: ModelCard, source: CardSource, artifact_path: Path | None) -> None:
        path = None if artifact_path is None else str(artifact_path)
        this = model_cards.c.model_id == card.model_id
        values = {"digest": card.digest, "card": card.to_wire(), "source": source.value}
        async with self._database.begin() as connection:
            wanted = select(model_cards.c.digest, model_cards.c.source).where(this)
            present = (await connection.execute(wanted)).one_or_none()
            if present is None:
                values |= {"model_id": card.model_id, "artifact_path": path, "created_at": datetime.now(UTC)}
                await connection.execute(insert(model_cards).values(values))
            elif present.digest == card.digest:
                if path is not None:
                    await connection.execute(update(model_cards).where(this).values(artifact_path=path))
            elif present.source == source == CardSource.INSTALLED:
                await connection.execute(
                    update(model_cards).where(this).values(values | {"artifact_path": path})
                )
            else:
                raise CatalogConflict(card.model_id, present.digest, card.digest)
        self._cards[card.digest] = card

    async def _entries(self, rows: Sequence[Row[*tuple[Any, ...]]]) -> list[CatalogEntry]:
        missing = {row.digest for row in rows} - self._cards.keys()
        if missing:
            await self._fetch(missing)
        return [
            CatalogEntry(self._cards[row.digest], row.source, row.artifact_path, row.created_at)
            for row in rows
            if row.digest in self._cards  # removed by another replica since the first look
        ]

    async def _fetch(self, digests: set[str]) -> None:
        wanted = select(model_cards.c.digest, model_cards.c.card).where(model_cards.c.digest.in_(digests))
        async with self._database.read() as connection:
            rows = (await connection.execute(wanted)).all()
        for digest, wire in rows:
            card = ModelCard.model_validate(wire)
            if card.digest != digest:
                raise CatalogError(
                    f"The stored card of {card.model_id!r} does not match its digest {digest[:12]}; it was changed "
                    "outside of Wharfinger. Remove the model and add it again."
                )
            self._cards[digest] = card


def closest_ids(model_id: str, known: Iterable[str], limit: int = 3) -> tuple[str, ...]:
    """The ids most like ``model_id``, best first: those that contain it, then those spelled alike."""
    by_lower = {name.lower(): name for name in sorted(known)}
    wanted = model_id.lower()
    containing = [name for name in by_lower if wanted and wanted in name]
    alike = difflib.get_close_matches(wanted, by_lower, n=limit, cutoff=0.4)
    return tuple(by_lower[name] for name in dict.fromkeys([*containing, *alike]))[:limit]
