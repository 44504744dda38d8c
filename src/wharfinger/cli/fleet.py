"""``status`` and ``nodes``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wharfinger.cli.client import Client
from wharfinger.cli.output import CliError, Exit, Format, emit, size, styled

if TYPE_CHECKING:
    from rich.console import Console

UNRESOLVED = ("pending", "leased", "running", "waiting", "cancelling")
MEMORY = ("ram_available_bytes", "ram_total_bytes")


def node_names(client: Client) -> dict[str, str]:
    """Names by node id, of the nodes heard of lately."""
    identities = client.get("/state")["nodeIdentities"]
    return {node_id: identity["friendlyName"] for node_id, identity in identities.items()}


def named(names: dict[str, str], node_ids: list[str]) -> list[str]:
    """The nodes' names; a node that left has only its id."""
    return [names.get(node_id, node_id) for node_id in node_ids]


def show_status(output: Format) -> None:
    """The control plane at a glance; one that is not ready still tells what it can."""
    client = Client()
    live = client.get("/livez")
    problems = client.problems()
    document: dict[str, Any] = {
        "url": client.url,
        "version": live["version"],
        "ready": not problems,
        "problems": problems,
    }
    try:
        document |= _seen(client)
    except CliError as error:
        if not problems:
            raise
        failure = CliError(f"{client.url} is not ready: {'; '.join(problems)}", Exit.UNREACHABLE)
        failure.result = document
        raise failure from error
    emit(output, document, lambda out: _print_status(out, document))


def _seen(client: Client) -> dict[str, Any]:
    operations = client.get("/api/v1/operations", limit=100)["operations"]
    return {
        "nodes": [
            {key: node[key] for key in ("node_id", "name", "health", *MEMORY)}
            for node in client.get("/api/v1/nodes")["nodes"]
        ],
        "instances": [
            {key: instance[key] for key in ("instance_id", "model_id", "status")}
            for instance in client.get("/instance")["instances"]
        ],
        "unresolved_operations": [o for o in operations if o["state"] in UNRESOLVED],
        "recent_failures": client.get("/state")["instanceFailures"][:5],
    }


def _print_status(out: Console, document: dict[str, Any]) -> None:
    out.print(f"Wharfinger {document['version']} at {document['url']}")
    for problem in document["problems"]:
        out.print(styled("  ", ("not ready", "red"), f" {problem}"))
    for node in document["nodes"]:
        out.print(
            styled(f"  node      {node['name']} ({node['node_id']})  ", _health(node), f"  {_memory(node)}")
        )
    if not document["instances"]:
        out.print("  instances none; launch one with: wharf launch MODEL --wait")
    for instance in document["instances"]:
        out.print(f"  instance  {instance['instance_id']}  {instance['model_id']}  {instance['status']}")
    for operation in document["unresolved_operations"]:
        out.print(
            f"  working   {operation['id']}  {operation['kind']}  {operation['state']} {operation['progress']}%"
        )
    for failure in document["recent_failures"]:
        out.print(f"  failed    {failure['instanceId']}  {failure['errorCode']}: {failure['errorMessage']}")


def show_nodes(output: Format) -> None:
    """All nodes with memory, devices, engines and health."""
    document = Client().get("/api/v1/nodes")

    def human(out: Console) -> None:
        for node in document["nodes"]:
            _print_node(out, node)

    emit(output, document, human)


def _print_node(out: Console, node: dict[str, Any]) -> None:
    out.print(styled((node["name"], "bold"), f"  {node['node_id']}  ", _health(node)))
    out.print(
        f"  {node['os']} {node['architecture']}, {node['cpu_count'] or '?'} CPUs {node['cpu_model'] or ''}"
    )
    cap = "" if node["memory_cap_bytes"] is None else f", of at most {size(node['memory_cap_bytes'])}"
    out.print(f"  memory    {_memory(node)}, {size(node['reserved_bytes'])} reserved by instances{cap}")
    out.print(f"  disk      {size(node['disk_free_bytes'])} free of {size(node['disk_total_bytes'])}")
    for device in node["devices"]:
        used = f"{size(device['used_bytes'])} used of {size(device['total_bytes'])}"
        out.print(f"  device {device['index']}  {device['name']}  {device['compute']}  {used}")
    for engine in node["engines"]:
        out.print(
            f"  engine    {engine['engine']} {engine['version'] or '?'}  ({', '.join(engine['backends'])})"
        )
    for reason in node["health"]["reasons"]:
        out.print(styled("  ", (reason["code"], "yellow"), f": {reason['message']}; {reason['remediation']}"))
    for fact, reason in node["missing"].items():
        out.print(f"  not measured: {fact} ({reason})")


def _memory(node: dict[str, Any]) -> str:
    return f"{size(node['ram_available_bytes'])} available of {size(node['ram_total_bytes'])}"


def _health(node: dict[str, Any]) -> tuple[str, str]:
    level = node["health"]["level"]
    return level, {"ok": "green", "warn": "yellow"}.get(level, "red")
