"""``plan``: previews as a table, with the reasons; against a running control plane or a described fleet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wharfinger.cli.node_choice import chosen_node, chosen_nodes
from wharfinger.cli.output import CliError, Exit, Format, emit, in_options, styled
from wharfinger.cli.tables import Column, print_table
from wharfinger.placement.units import gib

if TYPE_CHECKING:
    from rich.console import Console

    from wharfinger.cli.client import Client

MIB = 1 << 20
NOT_LAUNCHED = "planned; not launched by this release yet"


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What ``wharf plan`` was asked."""

    model: str
    context_tokens: int | None = None
    excluded: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    min_nodes: int = 1
    sharding: str | None = None
    backend: str | None = None
    explain: str | None = None
    what_if: tuple[str, ...] = ()
    fleet: Path | None = None


def run_plan(options: PlanOptions, output: Format) -> None:
    """Print where a model could run; exit code 5 when it could run nowhere, also when one node is explained."""
    document = _offline(options) if options.fleet else _online(options)
    for row in document["previews"]:
        row["launchable"] = row["plan"] is not None and _launchable(row["plan"])
    refusal = _refusal_of(options, document)
    if options.explain:
        node = _explained(document, options.explain)
        emit(output, node, lambda out: _print_node(out, node), refusal)
    else:
        emit(output, document, lambda out: print_previews(out, document), refusal)


def _launchable(plan: dict[str, Any]) -> bool:
    """Whether this release would launch a plan; of a machine that was described it may not."""
    from wharfinger.engines.registry import SPANS_MACHINES, engine_for

    if engine_for(plan["ranks"][0]["backend"]) is None:
        return False
    return SPANS_MACHINES or len(plan["ranks"]) == 1


def _refusal_of(options: PlanOptions, document: dict[str, Any]) -> CliError | None:
    """The planner's refusal as an error, when no way to run the model was found."""
    if any(row["plan"] for row in document["previews"]):
        return None
    refusal = next((row["refusal"] for row in document["previews"] if row["refusal"]), None)
    error, reasons = None, ": the fleet has no nodes"
    if document["node_names"]:
        reasons = f": one node has no {options.sharding} sharding; leave out --sharding, or use more nodes"
    if refusal is not None:
        error = {"message": refusal["message"], "code": refusal["code"], "details": refusal}
        # Explained is one node only: why it is none at all stands nowhere else.
        reasons = f": {in_options(refusal['message'])}" if options.explain else "; the reasons are above"
    return CliError(f"{options.model} cannot be placed now{reasons}", Exit.REFUSED, document=error)


def _online(options: PlanOptions) -> dict[str, Any]:
    from wharfinger.cli.client import Client
    from wharfinger.cli.model_names import catalog_id

    client = Client()
    names = _named_nodes(client, options) if options.excluded or options.required else {}
    return client.get(
        "/instance/previews",
        model_id=catalog_id(client, options.model),
        context_tokens=options.context_tokens,
        excluded_node_ids=chosen_nodes("--exclude", options.excluded, names) or None,
        node_ids=chosen_nodes("--node", options.required, names) or None,
        min_nodes=options.min_nodes,
        sharding=options.sharding,
        backend=options.backend,
        what_if=list(options.what_if) or None,
    )


def _named_nodes(client: Client, options: PlanOptions) -> dict[str, str]:
    from wharfinger.cli.fleet import node_names
    from wharfinger.placement.hypothetical import FleetError, add_what_if
    from wharfinger.placement.types import FleetSnapshot

    try:
        imagined = add_what_if(FleetSnapshot(()), options.what_if)
    except FleetError as error:
        raise CliError(str(error), Exit.USAGE) from error
    return node_names(client) | {node.node_id: node.name for node in imagined.nodes}


def _offline(options: PlanOptions) -> dict[str, Any]:
    from wharfinger.cli.offline import plan_offline

    return plan_offline(options)


def print_previews(out: Console, document: dict[str, Any]) -> None:
    """The ranked options, then the nodes that are out, then what would help."""
    planned = [row for row in document["previews"] if row["plan"]]
    planned.sort(key=lambda row: not _launchable(row["plan"]))
    shown, split = planned, []
    if any(len(row["plan"]["ranks"]) == 1 for row in planned):
        split = [row for row in planned if len(row["plan"]["ranks"]) > 1 and not _launchable(row["plan"])]
        shown = [row for row in planned if row not in split]
    if shown:
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
            [_plan_row(document, index, row) for index, row in enumerate(shown, 1)],
        )
        if not all(_launchable(row["plan"]) for row in shown):
            out.print(f"  * {NOT_LAUNCHED} (only llama_cpp, on one machine)", style="dim")
        if split:
            out.print(
                f"  also fits split over {_widths(split)} machines, which this release does not launch: "
                "--min-nodes 2 shows them",
                style="dim",
            )
        for line in _notes(document, [row["plan"] for row in shown]):
            out.print(f"  note: {line}", style="dim")
    _print_refusals(out, document, planned=bool(planned))


def _widths(rows: list[dict[str, Any]]) -> str:
    """On how many machines the rows' plans are: ``2, 3 or 4``."""
    *others, last = map(str, sorted({len(row["plan"]["ranks"]) for row in rows}))
    return f"{', '.join(others)} or {last}" if others else last


def note(flag: str) -> str:
    """A plan's flag for people."""
    return flag.replace("_", " ")


def _notes(document: dict[str, Any], plans: list[dict[str, Any]]) -> Iterator[str]:
    """Each flag once; what is not of every plan with the nodes of those it is of."""
    for flag in dict.fromkeys(flag for plan in plans for flag in plan["flags"]):
        flagged = [plan for plan in plans if flag in plan["flags"]]
        ids = dict.fromkeys(rank["node_id"] for plan in flagged for rank in plan["ranks"])
        names = ", ".join(_node_name(document, node_id) for node_id in ids)
        yield note(flag) if len(flagged) == len(plans) else f"{note(flag)} ({names})"


def _plan_row(document: dict[str, Any], index: int, row: dict[str, Any]) -> tuple[str, ...]:
    plan = row["plan"]
    ranks = plan["ranks"]
    number = "alt" if row["alternative"] else str(index)
    pools = [_pool_lines(rank) for rank in ranks]
    return (
        number if _launchable(plan) else f"{number}*",
        _beside(pools, [_node_name(document, rank["node_id"]) for rank in ranks]),
        ranks[0]["backend"],
        row["sharding"] if len(ranks) > 1 else "one node",
        _beside(pools, [_layers(rank) for rank in ranks]),
        "?" if plan["context_tokens"] is None else str(plan["context_tokens"]),
        "\n".join(line for lines in pools for line in lines),
    )


def _beside(pools: list[list[str]], texts: list[str]) -> str:
    """A cell with each rank's text in the line of its first pool."""
    return "".join(text + "\n" * len(lines) for text, lines in zip(texts, pools, strict=True)).rstrip("\n")


def _pool_lines(rank: dict[str, Any]) -> list[str]:
    """A line for each pool; of more than two GPUs one for the fullest, the others are in ``--explain``."""
    devices = [charge for charge in rank["charges"] if charge["device_index"] is not None]
    if len(devices) <= 2:
        return [_charge(charge) for charge in rank["charges"]]
    fullest = min(devices, key=lambda charge: charge["usable_bytes"] - charge["needed_bytes"])
    rest = [charge for charge in rank["charges"] if charge["device_index"] is None]
    return [f"{len(devices)} GPUs, fullest {_of_usable(fullest)}", *(_charge(charge) for charge in rest)]


def _print_refusals(out: Console, document: dict[str, Any], *, planned: bool) -> None:
    refusals = [row["refusal"] for row in document["previews"] if row["refusal"]]
    if refusals and not planned:
        out.print(styled((in_options(refusals[0]["message"]), "bold"), f"  ({refusals[0]['code']})"))
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
                    in_options(node["message"]),
                )
                for node in document["nodes"]
            ],
        )
    for refusal in refusals[:1] if not planned else ():
        for suggestion in refusal["suggestions"]:
            out.print(f"  would help: {in_options(suggestion['message'])}")


def plan_lines(plan: dict[str, Any], names: dict[str, str]) -> Iterator[str]:
    """A stored plan for people; ``names`` are the nodes' by id."""
    window = "?" if plan["context_tokens"] is None else plan["context_tokens"]
    yield f"window     {window} tokens, {plan['settings']['slots']} slot(s)"
    for rank in plan["ranks"]:
        node = names.get(rank["node_id"], rank["node_id"])
        yield f"rank {rank['rank']}     {node}  {rank['backend']}  layers {_layers(rank)}  {_charges(rank)}"
        for charge in rank["charges"]:
            parts = ", ".join(
                f"{part['name']} {part['size_bytes'] / MIB:.1f} MiB" for part in charge["parts"]
            )
            yield f"           {_pool(charge)}: {parts}"
    for flag in plan["flags"]:
        yield f"note       {note(flag)}"
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
        return f"free_memory {gib(int(value))}"
    shown = abs(value) if name == "load" else value + 0.0  # adding 0.0 makes -0.0 a plain 0
    return f"{name} {shown:g} {detail}".rstrip()


def _layers(rank: dict[str, Any]) -> str:
    """Layers a rank computes. Its shard does not tell: over RPC the driver's names all and a donor's none."""
    held = [each for each in rank["charges"] if each["end_layer"] > each["start_layer"]]
    first = min(charge["start_layer"] for charge in held)
    return f"{first}-{max(charge['end_layer'] for charge in held) - 1}"


def _known_size(size_bytes: int | None) -> str:
    return "" if size_bytes is None else gib(size_bytes)


def _charges(rank: dict[str, Any]) -> str:
    return ", ".join(_charge(charge) for charge in rank["charges"])


def _charge(charge: dict[str, Any]) -> str:
    return f"{_pool(charge)} {_of_usable(charge)}"


def _of_usable(charge: dict[str, Any]) -> str:
    return f"{gib(charge['needed_bytes'])} of {gib(charge['usable_bytes'])}"


def _pool(charge: dict[str, Any]) -> str:
    return "RAM" if charge["device_index"] is None else f"GPU {charge['device_index']}"


def _node_name(document: dict[str, Any], node_id: str) -> str:
    return document["node_names"].get(node_id, node_id)


def _explained(document: dict[str, Any], wanted: str) -> dict[str, Any]:
    """What the previews say about one node.

    Raises:
        CliError: no such node in the fleet, or several.
    """
    names = document["node_names"]
    node_id = chosen_node("--explain", wanted, names, Exit.NOT_FOUND)
    return {
        "node_id": node_id,
        "node_name": names[node_id],
        "node_names": names,
        "plans": [
            row["plan"] | {"launchable": row["launchable"]}
            for row in document["previews"]
            if row["plan"] and any(rank["node_id"] == node_id for rank in row["plan"]["ranks"])
        ],
        "refusal": next((node for node in document["nodes"] if node["node_id"] == node_id), None),
    }


def _print_node(out: Console, node: dict[str, Any]) -> None:
    name, node_id = node["node_name"], node["node_id"]
    out.print(styled((name, "bold"), "" if node_id == name else f"  {node_id}"))
    for plan in sorted(node["plans"], key=lambda plan: not plan["launchable"]):  # what runs now first
        out.print("  can run it:" if plan["launchable"] else f"  could run it ({NOT_LAUNCHED}):")
        for line in plan_lines(plan, node["node_names"]):
            out.print(f"    {line}")
    refusal = node["refusal"]
    if refusal:
        out.print(f"  cannot run it alone: {refusal['code']}: {in_options(refusal['message'])}")
        if refusal["needed_bytes"] is not None:
            for name in ("needed_bytes", "usable_bytes", "short_by_bytes"):
                out.print(f"    {name.removesuffix('_bytes').replace('_', ' '):<9} {gib(refusal[name])}")
        width = max((len(part["name"]) for part in refusal["parts"]), default=0)
        for part in refusal["parts"]:
            out.print(f"    {part['name']:<{width}} {part['size_bytes'] / MIB:10.1f} MiB")
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
