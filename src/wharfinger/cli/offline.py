"""Planning without a control plane: a fleet from YAML, a card from a file or from the local catalog."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from wharfinger.api.wire import previews_wire
from wharfinger.catalog.card import ModelCard
from wharfinger.catalog.card_files import card_of
from wharfinger.catalog.errors import ArtifactError
from wharfinger.catalog.library import CatalogLibrary
from wharfinger.cli.model_names import same_but_for_case
from wharfinger.cli.node_choice import chosen_nodes
from wharfinger.cli.output import CliError, Exit
from wharfinger.cli.plan import PlanOptions, load_json
from wharfinger.cli.settings import settings_from
from wharfinger.engines.registry import STARTED_ENGINES
from wharfinger.placement.backends import preferring
from wharfinger.placement.hypothetical import FleetError, add_what_if, fleet_from_mapping
from wharfinger.placement.previews import preview_answer
from wharfinger.placement.tags import accepted_instead
from wharfinger.placement.types import FleetSnapshot, PlanRequest, Sharding
from wharfinger.store.database import Database


def plan_offline(options: PlanOptions) -> dict[str, Any]:
    """The previews document of a described fleet.

    Raises:
        CliError: the fleet file, the model or an option is wrong; the message names which and what is accepted.
    """
    assert options.fleet is not None
    accepted = None if options.backend is None else accepted_instead(options.backend)
    if accepted is not None:
        raise CliError(f"--backend is {options.backend!r}; accepted: {accepted}", Exit.USAGE)
    settings = settings_from()
    try:
        snapshot = add_what_if(_fleet(options.fleet), options.what_if)
    except FleetError as error:
        raise CliError(f"{options.fleet}: {error}", Exit.USAGE) from error
    names = {node.node_id: node.name for node in snapshot.nodes}
    excluded = chosen_nodes("--exclude", options.excluded, names)
    required = chosen_nodes("--node", options.required, names)
    card, catalog = asyncio.run(_cards(options.model, settings.data_dir))
    sharding = None if options.sharding is None else Sharding(options.sharding)
    request = PlanRequest(
        sharding=sharding or Sharding.PIPELINE,
        min_nodes=options.min_nodes,
        excluded_node_ids=frozenset(excluded),
        required_node_ids=frozenset(required),
        context_tokens=options.context_tokens,
        backend=options.backend,
        default_context_tokens=settings.default_context_tokens,
    )
    # A described machine has every engine of its hardware; planned for are first those that would be started.
    planned_for = preferring(card, STARTED_ENGINES)
    answer = preview_answer(snapshot, planned_for, request, catalog=catalog, sharding=sharding)
    return previews_wire(card, snapshot, answer, excluded)


class _Loader(yaml.SafeLoader):
    """YAML in which a key that is there twice is an error: the last one would silently win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                if key_node.value in seen:
                    raise FleetError(
                        f"the key {key_node.value!r} is there twice, the second time in line "
                        f"{key_node.start_mark.line + 1}"
                    )
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)


def _fleet(path: Path) -> FleetSnapshot:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise CliError(f"{path} cannot be read: {reason}", Exit.USAGE) from error
    try:
        described = yaml.load(text, Loader=_Loader)
    except FleetError:
        raise
    except (yaml.YAMLError, ValueError) as error:  # a ValueError: a number or date beyond what Python reads
        raise CliError(f"{path} is not YAML: {error}", Exit.USAGE) from error
    return fleet_from_mapping(described)


async def _cards(model: str, data_dir: Path) -> tuple[ModelCard, list[ModelCard]]:
    """The card asked for, and the local catalog beside it (for suggestions)."""
    path = Path(model)
    catalog: list[ModelCard] = []
    database_file = data_dir / "wharfinger.db"
    if database_file.exists():
        database = Database.open(f"sqlite+aiosqlite:///{database_file}")
        try:
            catalog = [entry.card for entry in await CatalogLibrary(database).list()]
        finally:
            await database.close()
    if path.exists():
        return _card_from_file(path), catalog
    by_id = {card.model_id: card for card in catalog}
    card = by_id.get(same_but_for_case(model, by_id))
    if card is not None:
        return card, catalog
    known = ", ".join(card.model_id for card in catalog) or "none"
    raise CliError(
        f"{model!r} is neither a file nor a model of the local catalog (known: {known}). Give a GGUF file, a folder "
        "with safetensors and config.json, or a card as JSON.",
        Exit.NOT_FOUND,
    )


def _card_from_file(path: Path) -> ModelCard:
    if path.suffix == ".json" and path.is_file():
        try:
            return ModelCard.model_validate(load_json(path))
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            raise CliError(f"{path} is not a model card: {field}: {first['msg']}", Exit.USAGE) from error
    try:
        return card_of(path, None)
    except ArtifactError as error:
        raise CliError(str(error), Exit.USAGE) from error
