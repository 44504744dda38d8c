"""The catalog in the database, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import select, update

from catalog import configs
from catalog.gguf_files import tiny_llama
from catalog.test_hf_card import LLAMA_TENSORS, made
from wharfinger.catalog.card import ByteSize, ModelCard
from wharfinger.catalog.errors import ArtifactError, CatalogError, GgufError, NotRemovableError
from wharfinger.catalog.library import CardSource, CatalogConflict, CatalogLibrary, UnknownModel, closest_ids
from wharfinger.store.database import Database
from wharfinger.store.tables import model_cards


def plain_card(model_id: str, n_layers: int = 2, is_custom: bool = True) -> ModelCard:
    return ModelCard(
        model_id=model_id,
        storage_size=ByteSize(in_bytes=100),
        n_layers=n_layers,
        hidden_size=8,
        is_custom=is_custom,
    )


@pytest.fixture
def library(database: Database) -> CatalogLibrary:
    return CatalogLibrary(database)


async def test_a_file_is_added_found_listed_and_removed(
    database: Database, library: CatalogLibrary, tmp_path: Path
) -> None:
    path = tiny_llama(tmp_path / "tiny.gguf", general__name="Tiny Llama")
    card = await library.add_file(path)
    assert card.model_id == "Tiny-Llama"
    entry = await CatalogLibrary(database).get("Tiny-Llama")
    assert entry.card == card
    assert entry.card.digest == card.digest
    assert entry.source == "custom"
    assert entry.artifact_path == str(path)
    assert entry.created_at.tzinfo is not None
    assert [item.card.model_id for item in await library.list()] == ["Tiny-Llama"]
    await library.remove("Tiny-Llama")
    assert await library.list() == []
    assert path.exists()


async def test_the_id_may_be_chosen_and_must_be_a_name(library: CatalogLibrary, tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "tiny.gguf")
    assert (await library.add_file(path, "me/tiny:1")).model_id == "me/tiny:1"
    for bad in ("a b", "", "/x", "a/b/c", "x" * 201, "über"):
        with pytest.raises(ArtifactError, match="cannot be a model id"):
            await library.add_file(path, bad)
    assert len(await library.list()) == 1


async def test_a_checkpoint_folder_is_added(library: CatalogLibrary, tmp_path: Path) -> None:
    folder = tmp_path / "Tiny"
    made(folder, configs.llama(2, 8, 2, 1), LLAMA_TENSORS)
    card = await library.add_file(folder)
    assert card.model_id == "Tiny"
    assert (await library.get("Tiny")).artifact_path == str(folder)


async def test_a_bad_file_leaves_nothing(library: CatalogLibrary, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"nothing")
    with pytest.raises(GgufError, match="is no GGUF file"):
        await library.add_file(tmp_path / "bad.gguf")
    assert await library.list() == []


async def test_the_same_card_twice_is_one_entry_with_the_new_path(
    library: CatalogLibrary, tmp_path: Path
) -> None:
    first = await library.add_card(plain_card("one"), CardSource.CUSTOM, tmp_path / "a")
    again = await library.add_card(plain_card("one"), CardSource.CUSTOM, tmp_path / "b")
    assert again.created_at == first.created_at
    assert again.artifact_path == str(tmp_path / "b")
    kept = await library.add_card(plain_card("one"), CardSource.CUSTOM)
    assert kept.artifact_path == str(tmp_path / "b")
    assert len(await library.list()) == 1


async def test_another_card_under_the_same_id_is_a_conflict(library: CatalogLibrary) -> None:
    await library.add_card(plain_card("one"), CardSource.CUSTOM)
    with pytest.raises(CatalogConflict, match="another model under the id 'one'") as caught:
        await library.add_card(plain_card("one", n_layers=3), CardSource.CUSTOM)
    assert caught.value.existing_digest == plain_card("one").digest
    assert caught.value.offered_digest == plain_card("one", n_layers=3).digest
    with pytest.raises(CatalogConflict):
        await library.add_card(plain_card("one", n_layers=3), CardSource.INSTALLED)
    assert (await library.get("one")).card.n_layers == 2


async def test_an_installed_card_is_renewed_by_a_newer_release(
    library: CatalogLibrary, tmp_path: Path
) -> None:
    await library.add_card(plain_card("demo", is_custom=False), CardSource.INSTALLED, tmp_path / "a")
    newer = plain_card("demo", n_layers=3, is_custom=False)
    entry = await library.add_card(newer, CardSource.INSTALLED, tmp_path / "b")
    assert entry.card == newer
    assert entry.artifact_path == str(tmp_path / "b")


async def test_two_replicas_that_add_at_once_agree(database: Database) -> None:
    cards = [plain_card("one", n_layers=layers) for layers in range(1, 9)]
    outcomes = await asyncio.gather(
        *(CatalogLibrary(database).add_card(card, CardSource.CUSTOM) for card in cards),
        return_exceptions=True,
    )
    stored = (await CatalogLibrary(database).get("one")).card
    assert [outcome.card for outcome in outcomes if not isinstance(outcome, BaseException)] == [stored]
    assert sum(isinstance(outcome, CatalogConflict) for outcome in outcomes) == 7


async def test_an_unknown_model_names_the_closest(library: CatalogLibrary) -> None:
    for name in ("gemma-3-270m", "Llama-3.2-1B-Instruct", "Qwen3-0.6B"):
        await library.add_card(plain_card(name), CardSource.CUSTOM)
    with pytest.raises(UnknownModel, match=r"Did you mean gemma-3-270m\?") as caught:
        await library.get("gema-3")
    assert caught.value.model_id == "gema-3"
    assert caught.value.closest == ("gemma-3-270m",)
    with pytest.raises(UnknownModel):
        await library.remove("gema-3")


def test_closest_ids() -> None:
    known = ["Llama-3.2-1B", "Llama-3.2-3B", "Qwen3-0.6B", "org/Llama-3.2-1B-Instruct"]
    assert closest_ids("llama-3.2-1b", known) == ("Llama-3.2-1B", "org/Llama-3.2-1B-Instruct", "Llama-3.2-3B")
    assert closest_ids("qwen", known)[0] == "Qwen3-0.6B"
    assert closest_ids("zzz", known) == ()
    assert closest_ids("", known) == ()


async def test_only_custom_cards_are_removed(library: CatalogLibrary) -> None:
    await library.add_card(plain_card("demo", is_custom=False), CardSource.INSTALLED)
    with pytest.raises(NotRemovableError, match="comes from the installed catalog"):
        await library.remove("demo")
    assert len(await library.list()) == 1


async def test_cards_are_parsed_once_and_other_replicas_changes_are_seen(
    database: Database, library: CatalogLibrary
) -> None:
    await library.add_card(plain_card("one"), CardSource.CUSTOM)
    reader = CatalogLibrary(database)
    first = await reader.get("one")
    assert (await reader.get("one")).card is first.card
    assert (await reader.list())[0].card is first.card
    await library.remove("one")
    with pytest.raises(UnknownModel):
        await reader.get("one")
    await library.add_card(plain_card("one", n_layers=5), CardSource.CUSTOM)
    assert (await reader.get("one")).card.n_layers == 5


async def test_a_card_changed_behind_our_back_is_noticed(database: Database, library: CatalogLibrary) -> None:
    await library.add_card(plain_card("one"), CardSource.CUSTOM)
    async with database.begin() as connection:
        wire = (await connection.execute(select(model_cards.c.card))).scalar_one()
        await connection.execute(update(model_cards).values(card={**wire, "nLayers": 99}))
    with pytest.raises(CatalogError, match="does not match its digest"):
        await CatalogLibrary(database).get("one")
