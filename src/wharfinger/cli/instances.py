"""``launch``, ``ps``, ``show``, ``logs`` and ``stop``."""

from __future__ import annotations

import sys
import time
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from wharfinger.cli.client import Client
from wharfinger.cli.follow import follow_operation, require_success
from wharfinger.cli.output import CliError, Format, emit, say, size

if TYPE_CHECKING:
    from rich.console import Console

_FOLLOW_S = 0.3


def run_launch(body: dict[str, Any], *, wait: bool, output: Format) -> None:
    """Place a model; with ``wait``, until it answers."""
    client = Client()
    try:
        answer = client.post("/place_instance", body, {"Idempotency-Key": str(uuid.uuid4())})
    except CliError as error:
        _explain_refusal(error)
        raise
    instance_id, operation_id = answer["instance_id"], answer["operation_id"]
    if wait:
        operation = follow_operation(client, operation_id)
        if operation["state"] != "succeeded":
            _say_log_tail(client, instance_id)
        require_success(operation)
    shown = client.get(f"/api/v1/instances/{instance_id}")

    def human(out: Console) -> None:
        out.print(
            f"{instance_id}  {shown['model_id']}  [bold]{shown['status']}[/] on {', '.join(shown['node_ids'])}"
        )
        if wait:
            out.print(f"ask it something: wharf chat {shown['model_id']} -m 'Hello'")
        else:
            out.print(f"follow it: wharf ops watch {operation_id}")

    emit(output, shown, human)


def _explain_refusal(error: CliError) -> None:
    details = (error.document or {}).get("details") or {}
    for node in details.get("nodes", []):
        say(f"  {node['node_name']}: {node['code']}: {node['message']}")
    for suggestion in details.get("suggestions", []):
        say(f"  would help: {suggestion['message']}")


def _say_log_tail(client: Client, instance_id: str) -> None:
    try:
        failure = client.get(f"/api/v1/instances/{instance_id}").get("failure") or {}
    except CliError:
        return  # it was cancelled: nothing is left to show
    for line in failure.get("log_tail", [])[-15:]:
        say(f"  | {line}")


def show_instances(output: Format) -> None:
    """List all instances."""
    document = Client().get("/instance")

    def human(out: Console) -> None:
        from rich.table import Table

        if not document["instances"]:
            out.print("no instances; launch one with: wharf launch MODEL --wait")
            return
        table = Table(
            "instance", "model", "status", "runner", "nodes", "backend", "window", "memory", "age", box=None
        )
        for instance in document["instances"]:
            table.add_row(
                instance["instance_id"],
                instance["model_id"],
                instance["status"],
                ", ".join(runner["state"] for runner in instance["runners"]) or "-",
                ", ".join(instance["node_ids"]),
                instance["backend"],
                "?" if instance["context_tokens"] is None else str(instance["context_tokens"]),
                size(sum(instance["memory_by_node"].values())),
                _age(instance["created_at"]),
            )
        out.print(table)

    emit(output, document, human)


def show_instance(instance_id: str, output: Format) -> None:
    """Everything about one instance."""
    document = Client().get(f"/api/v1/instances/{instance_id}")

    def human(out: Console) -> None:
        from wharfinger.cli.plan import plan_lines

        out.print(f"[bold]{document['instance_id']}[/]  {document['model_id']}  {document['status']}")
        if document["status_reason"]:
            out.print(f"  reason     {document['status_reason']}")
        out.print(f"  operation  {document['operation_id']}")
        for runner in document["runners"]:
            where = runner["endpoint"] or "no endpoint"
            out.print(f"  runner     {runner['runner_id']}  {runner['state']}  pid {runner['pid']}  {where}")
        for line in plan_lines(document["plan"]):
            out.print(f"  {line}")
        failure = document["failure"]
        if failure:
            out.print(f"  failure    {failure['code']}: {failure['message']}")
            for line in failure["log_tail"]:
                out.print(f"    | {line}", markup=False)

    emit(output, document, human)


def print_logs(instance_id: str, *, follow: bool, rank: int) -> None:
    """Print a runner's log, following it if asked."""
    client = Client()
    offset = 0
    while True:
        chunk = client.get(f"/api/v1/instances/{instance_id}/logs", offset=offset, rank=rank)
        sys.stdout.write(chunk["text"])
        sys.stdout.flush()
        if chunk["next_offset"] == offset and (chunk["ended"] or not follow):
            return
        if chunk["next_offset"] == offset:
            time.sleep(_FOLLOW_S)
        offset = chunk["next_offset"]


def run_stop(instance_id: str, *, wait: bool, output: Format) -> None:
    """Delete an instance; with ``wait``, until nothing of it is left."""
    client = Client()
    answer = client.delete(f"/instance/{instance_id}")
    if wait:
        operation = follow_operation(client, answer["operation_id"])
        if operation["state"] != "cancelled":  # a launch that was cancelled is a stop as well
            require_success(operation)
        answer["state"] = operation["state"]

    def human(out: Console) -> None:
        done = "stopped" if wait else f"stopping; follow it: wharf ops watch {answer['operation_id']}"
        out.print(f"{instance_id} {done}")

    emit(output, answer, human)


def _age(created_at: str) -> str:
    seconds = (datetime.now(UTC) - datetime.fromisoformat(created_at)).total_seconds()
    for limit, unit, divisor in ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"
