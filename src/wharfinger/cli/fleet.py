"""``status`` and ``nodes``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wharfinger.cli.client import Client
from wharfinger.cli.output import Format, emit, size

if TYPE_CHECKING:
    from rich.console import Console

UNRESOLVED = ("pending", "leased", "running", "waiting", "cancelling")


def show_status(output: Format) -> None:
    """The control plane at a glance."""
    client = Client()
    live = client.get("/livez")
    nodes = client.get("/api/v1/nodes")["nodes"]
    instances = client.get("/instance")["instances"]
    operations = client.get("/api/v1/operations", limit=100)["operations"]
    failures = client.get("/state")["instanceFailures"]
    document = {
        "url": client.url,
        "version": live["version"],
        "nodes": [
            {"node_id": node["node_id"], "name": node["name"], "health": node["health"]} for node in nodes
        ],
        "instances": [
            {key: instance[key] for key in ("instance_id", "model_id", "status")} for instance in instances
        ],
        "unresolved_operations": [o for o in operations if o["state"] in UNRESOLVED],
        "recent_failures": failures[:5],
    }

    def human(out: Console) -> None:
        out.print(f"Wharfinger {live['version']} at {client.url}")
        for node in nodes:
            out.print(f"  node      {node['name']} ({node['node_id']})  {_health(node)}  {_memory(node)}")
        if not instances:
            out.print("  instances none; launch one with: wharf launch MODEL --wait")
        for instance in instances:
            out.print(f"  instance  {instance['instance_id']}  {instance['model_id']}  {instance['status']}")
        for operation in document["unresolved_operations"]:
            out.print(
                f"  working   {operation['id']}  {operation['kind']}  {operation['state']} {operation['progress']}%"
            )
        for failure in failures[:5]:
            out.print(
                f"  failed    {failure['instanceId']}  {failure['errorCode']}: {failure['errorMessage']}"
            )

    emit(output, document, human)


def show_nodes(output: Format) -> None:
    """All nodes with memory, devices, engines and health."""
    document = Client().get("/api/v1/nodes")

    def human(out: Console) -> None:
        for node in document["nodes"]:
            out.print(f"[bold]{node['name']}[/]  {node['node_id']}  {_health(node)}")
            out.print(
                f"  {node['os']} {node['architecture']}, {node['cpu_count'] or '?'} CPUs {node['cpu_model'] or ''}"
            )
            out.print(f"  memory    {_memory(node)}, {size(node['reserved_bytes'])} reserved by instances")
            out.print(f"  disk      {size(node['disk_free_bytes'])} free of {size(node['disk_total_bytes'])}")
            for device in node["devices"]:
                used = f"{size(device['used_bytes'])} used of {size(device['total_bytes'])}"
                out.print(f"  device {device['index']}  {device['name']}  {device['compute']}  {used}")
            for engine in node["engines"]:
                out.print(
                    f"  engine    {engine['engine']} {engine['version'] or '?'}  ({', '.join(engine['backends'])})"
                )
            for reason in node["health"]["reasons"]:
                out.print(f"  [yellow]{reason['code']}[/]: {reason['message']}; {reason['remediation']}")
            for fact, reason in node["missing"].items():
                out.print(f"  not measured: {fact} ({reason})")

    emit(output, document, human)


def _memory(node: dict[str, Any]) -> str:
    return f"{size(node['ram_available_bytes'])} available of {size(node['ram_total_bytes'])}"


def _health(node: dict[str, Any]) -> str:
    level = node["health"]["level"]
    colour = {"ok": "green", "warn": "yellow"}.get(level, "red")
    return f"[{colour}]{level}[/]"
