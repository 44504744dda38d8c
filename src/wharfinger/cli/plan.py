"""``plan``: previews as a table, with the reasons; against a running control plane or a described fleet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wharfinger.cli.output import CliError, Exit, Format, emit, size, styled
from wharfinger.cli.tables import Column, print_table

if TYPE_CHECKING:
    from rich.console import Console

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What ``wharf plan`` was asked."""

    model: str
    context_tokens: int | None = None
    excluded: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    min_nodes: int = 1
    sharding: str | None = None
    explain: str | None = None
    what_if: tuple[str, ...] = ()
    fleet: Path | None = None


def run_plan(options: PlanOptions, output: Format) -> None:
    """Print where a model could run; exit code 5 when it could run nowhere."""
    document = _offline(options) if options.fleet else _online(options)
    if options.explain:
        node = _explained(document, options.explain)
        emit(output, node, lambda out: _print_node(out, node))
        return
    emit(output, document, lambda out: print_previews(out, document), _refusal_of(options.model, document))


def _refusal_of(model: str, document: dict[str, Any]) -> CliError | None:
    """The planner's refusal as an error, when no way to run the model was found."""
    if any(row["plan"] for row in document["previews"]):
        return None
    refusal = next((row["refusal"] for row in document["previews"] if row["refusal"]), None)
    error = None
    if refusal is not None:
        error = {"message": refusal["message"], "code": refusal["code"], "details": refusal}
    return CliError(f"{model} cannot be placed now; the reasons are above", Exit.REFUSED, document=error)


def _online(options: PlanOptions) -> dict[str, Any]:
    from wharfinger.cli.client import Client

    return Client().get(
        "/instance/previews",
        model_id=options.model,
        context_tokens=options.context_tokens,
        excluded_node_ids=list(options.excluded) or None,
        node_ids=list(options.required) or None,
        min_nodes=options.min_nodes,
        sharding=options.sharding,
        what_if=list(options.what_if) or None,
    )


def _offline(options: PlanOptions) -> dict[str, Any]:
    from wharfinger.cli.offline import plan_offline

    return plan_offline(options)


def print_previews(out: Console, document: dict[str, Any]) -> None:
    """The ranked options, then the nodes that are out, then what would help."""
    planned = [row for row in document["previews"] if row["plan"]]
    if planned:
        print_table(
            out,
            (
                Column(""),
                Column("nodes", whole=True),
                Column("backend"),
                Column("sharding", wide_only=True),
                Column("layers", wide_only=True),
                Column("window"),
                Column("memory needed of usable"),
            ),
            [_plan_row(document, index, row) for index, row in enumerate(planned, 1)],
        )
        for flag in planned[0]["plan"]["flags"]:
            out.print(f"  note: {flag.replace('_', ' ')}", style="dim")
    _print_refusals(out, document, planned=bool(planned))


def _plan_row(document: dict[str, Any], index: int, row: dict[str, Any]) -> tuple[str, ...]:
    plan = row["plan"]
    ranks = plan["ranks"]
    return (
        "alt" if row["alternative"] else str(index),
        "\n".join(_node_name(document, rank["node_id"]) for rank in ranks),
        ranks[0]["backend"],
        row["sharding"] if len(ranks) > 1 else "one node",
        "\n".join(f"{rank['start_layer']}-{rank['end_layer'] - 1}" for rank in ranks),
        "?" if plan["context_tokens"] is None else str(plan["context_tokens"]),
        "\n".join(_charges(rank) for rank in ranks),
    )


def _print_refusals(out: Console, document: dict[str, Any], *, planned: bool) -> None:
    refusals = [row["refusal"] for row in document["previews"] if row["refusal"]]
    if refusals and not planned:
        out.print(styled((refusals[0]["message"], "bold"), f"  ({refusals[0]['code']})"))
    if document["nodes"]:
        print_table(
            out,
            (
                Column("node", whole=True),
                Column("why not", whole=True),
                Column("needed", wide_only=True),
                Column("usable", wide_only=True),
                Column("short by"),
                Column(""),
            ),
            [
                (
                    node["node_name"],
                    node["code"],
                    *(_known_size(node[key]) for key in ("needed_bytes", "usable_bytes", "short_by_bytes")),
                    node["message"],
                )
                for node in document["nodes"]
            ],
        )
    for refusal in refusals[:1] if not planned else ():
        for suggestion in refusal["suggestions"]:
            out.print(f"  would help: {suggestion['message']}")


def plan_lines(plan: dict[str, Any], names: dict[str, str]) -> Iterator[str]:
    """A stored plan for people; ``names`` are the nodes' by id."""
    window = "?" if plan["context_tokens"] is None else plan["context_tokens"]
    yield f"window     {window} tokens, {plan['settings']['slots']} slot(s)"
    for rank in plan["ranks"]:
        node = names.get(rank["node_id"], rank["node_id"])
        layers = f"layers {rank['start_layer']}-{rank['end_layer'] - 1}"
        yield f"rank {rank['rank']}     {node}  {rank['backend']}  {layers}  {_charges(rank)}"
        for charge in rank["charges"]:
            parts = ", ".join(
                f"{part['name']} {part['size_bytes'] / MIB:.1f} MiB" for part in charge["parts"]
            )
            yield f"           {_pool(charge)}: {parts}"
    for part in plan["score"]:
        yield f"score      {_score_text(part)}"


def _score_text(part: dict[str, Any]) -> str:
    """A part of the score. The planner counts what is bad as negative; people read how much of it there is."""
    name, value, detail = part["name"], part["value"], part["detail"]
    if name == "node_id":  # breaks ties and has no value
        return f"{name} {detail}"
    if value is None:
        return f"{name} unknown {detail}".rstrip()
    if name == "width":
        return f"{name} {-value:.0f} {'node' if value == -1 else 'nodes'}"
    if name == "free_memory_bytes":
        return f"free_memory {size(int(value))}"
    shown = abs(value) if name == "load" else value + 0.0  # adding 0.0 makes -0.0 a plain 0
    return f"{name} {shown:g} {detail}".rstrip()


def _known_size(size_bytes: int | None) -> str:
    return "" if size_bytes is None else size(size_bytes)


def _charges(rank: dict[str, Any]) -> str:
    return ", ".join(
        f"{_pool(charge)} {size(sum(part['size_bytes'] for part in charge['parts']))} of {size(charge['usable_bytes'])}"
        for charge in rank["charges"]
    )


def _pool(charge: dict[str, Any]) -> str:
    return "RAM" if charge["device_index"] is None else f"GPU {charge['device_index']}"


def _node_name(document: dict[str, Any], node_id: str) -> str:
    return document["node_names"].get(node_id, node_id)


def _explained(document: dict[str, Any], wanted: str) -> dict[str, Any]:
    """What the previews say about one node, by id or name.

    Raises:
        CliError: no such node in the fleet.
    """
    names = document["node_names"]
    found = [node_id for node_id, name in names.items() if wanted in (node_id, name)]
    if not found:
        known = ", ".join(sorted(names.values())) or "none"
        raise CliError(f"no node {wanted!r} in this fleet; there are: {known}", Exit.NOT_FOUND)
    node_id = found[0]
    return {
        "node_id": node_id,
        "node_name": names[node_id],
        "node_names": names,
        "plans": [
            row["plan"]
            for row in document["previews"]
            if row["plan"] and any(rank["node_id"] == node_id for rank in row["plan"]["ranks"])
        ],
        "refusal": next((node for node in document["nodes"] if node["node_id"] == node_id), None),
    }


def _print_node(out: Console, node: dict[str, Any]) -> None:
    out.print(styled((node["node_name"], "bold"), f"  {node['node_id']}"))
    for plan in node["plans"]:
        out.print("  can run it:")
        for line in plan_lines(plan, node["node_names"]):
            out.print(f"    {line}")
    refusal = node["refusal"]
    if refusal:
        out.print(f"  cannot run it alone: {refusal['code']}: {refusal['message']}")
        if refusal["needed_bytes"] is not None:
            for name in ("needed_bytes", "usable_bytes", "short_by_bytes"):
                out.print(f"    {name.removesuffix('_bytes').replace('_', ' '):<9} {size(refusal[name])}")
        for part in refusal["parts"]:
            out.print(f"    {part['name']:<16} {part['size_bytes'] / MIB:10.1f} MiB")
    if not node["plans"] and not refusal:
        out.print("  fits, but better nodes were ranked first")


def load_json(path: Path) -> Any:
    """A JSON document from a file.

    Raises:
        CliError: not JSON.
    """
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise CliError(f"{path} is not JSON: {error}", Exit.USAGE) from error
