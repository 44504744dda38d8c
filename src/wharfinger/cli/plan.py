"""``plan``: previews as a table, with the reasons; against a running control plane or a described fleet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wharfinger.cli.output import CliError, Exit, Format, emit, size

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
    emit(output, document, lambda out: print_previews(out, document))
    if not any(row["plan"] for row in document["previews"]):
        raise CliError(f"{options.model} cannot be placed now; the reasons are above", Exit.REFUSED)


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
    from rich.table import Table

    planned = [row for row in document["previews"] if row["plan"]]
    if planned:
        table = Table(
            "", "nodes", "backend", "sharding", "layers", "window", "memory needed of usable", box=None
        )
        for index, row in enumerate(planned, 1):
            plan = row["plan"]
            ranks = plan["ranks"]
            table.add_row(
                "alt" if row["alternative"] else str(index),
                "\n".join(_node_name(document, rank["node_id"]) for rank in ranks),
                ranks[0]["backend"],
                row["sharding"] if len(ranks) > 1 else "one node",
                "\n".join(f"{rank['start_layer']}-{rank['end_layer'] - 1}" for rank in ranks),
                "?" if plan["context_tokens"] is None else str(plan["context_tokens"]),
                "\n".join(_charges(rank) for rank in ranks),
            )
        out.print(table)
        for flag in planned[0]["plan"]["flags"]:
            out.print(f"  note: {flag.replace('_', ' ')}", style="dim")
    _print_refusals(out, document, planned=bool(planned))


def _print_refusals(out: Console, document: dict[str, Any], *, planned: bool) -> None:
    from rich.table import Table

    refusals = [row["refusal"] for row in document["previews"] if row["refusal"]]
    if refusals and not planned:
        out.print(f"[bold]{refusals[0]['message']}[/]  ({refusals[0]['code']})")
    nodes = document["nodes"]
    if nodes:
        table = Table("node", "why not", "needed", "usable", "short by", "", box=None)
        for node in nodes:
            table.add_row(
                node["node_name"],
                node["code"],
                size(node["needed_bytes"]) if node["needed_bytes"] is not None else "",
                size(node["usable_bytes"]) if node["usable_bytes"] is not None else "",
                size(node["short_by_bytes"]) if node["short_by_bytes"] is not None else "",
                node["message"],
            )
        out.print(table)
    for refusal in refusals[:1] if not planned else ():
        for suggestion in refusal["suggestions"]:
            out.print(f"  would help: {suggestion['message']}")


def plan_lines(plan: dict[str, Any]) -> Iterator[str]:
    """A stored plan for people."""
    window = "?" if plan["context_tokens"] is None else plan["context_tokens"]
    yield f"window     {window} tokens, {plan['settings']['slots']} slot(s)"
    for rank in plan["ranks"]:
        layers = f"layers {rank['start_layer']}-{rank['end_layer'] - 1}"
        yield f"rank {rank['rank']}     {rank['node_id']}  {rank['backend']}  {layers}  {_charges(rank)}"
        for charge in rank["charges"]:
            parts = ", ".join(
                f"{part['name']} {part['size_bytes'] / MIB:.1f} MiB" for part in charge["parts"]
            )
            yield f"           {_pool(charge)}: {parts}"
    for part in plan["score"]:
        value = "unknown" if part["value"] is None else f"{part['value']:g}"
        yield f"score      {part['name']} {value} {part['detail']}".rstrip()


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
        "plans": [
            row["plan"]
            for row in document["previews"]
            if row["plan"] and any(rank["node_id"] == node_id for rank in row["plan"]["ranks"])
        ],
        "refusal": next((node for node in document["nodes"] if node["node_id"] == node_id), None),
    }


def _print_node(out: Console, node: dict[str, Any]) -> None:
    out.print(f"[bold]{node['node_name']}[/]  {node['node_id']}")
    for plan in node["plans"]:
        out.print("  can run it:")
        for line in plan_lines(plan):
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
