"""``launch``, ``ps``, ``show``, ``logs`` and ``stop``."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from wharfinger.cli.client import Client, path_of
from wharfinger.cli.fleet import named, node_names
from wharfinger.cli.follow import failure_of, follow_operation, require_success
from wharfinger.cli.model_names import catalog_id
from wharfinger.cli.node_choice import chosen_nodes
from wharfinger.cli.output import CliError, Format, emit, in_options, say, size, styled
from wharfinger.cli.tables import Column, print_table

if TYPE_CHECKING:
    from rich.console import Console

_FOLLOW_S = 0.3
SAID_LOG_LINES = 15


def run_launch(body: dict[str, Any], *, wait: bool, output: Format) -> None:
    """Place a model; with ``wait``, until it answers. The body may call nodes by their names."""
    client = Client()
    body["model_id"] = catalog_id(client, body["model_id"])
    if body["excluded_nodes"] or body["node_ids"]:
        names = node_names(client)
        body["excluded_nodes"] = chosen_nodes("--exclude", body["excluded_nodes"], names)
        body["node_ids"] = chosen_nodes("--node", body["node_ids"], names)
    try:
        answer = client.post("/place_instance", body, {"Idempotency-Key": str(uuid.uuid4())})
    except CliError as error:
        _explain_refusal(error)
        raise
    instance_id, operation_id = answer["instance_id"], answer["operation_id"]
    if wait:
        failure = failure_of(follow_operation(client, operation_id))
        if failure is not None:
            raise _with_log_tail(failure, client, instance_id)
    shown = client.get(f"/api/v1/instances/{path_of(instance_id)}")

    def human(out: Console) -> None:
        from wharfinger.cli.plan import note

        nodes = ", ".join(named(node_names(client), shown["node_ids"]))
        out.print(styled(f"{instance_id}  {shown['model_id']}  ", (shown["status"], "bold"), f" on {nodes}"))
        for flag in shown["plan"]["flags"]:
            out.print(f"note: {note(flag)}")
        if wait:
            out.print(f"ask it something: wharf chat {shown['model_id']} -m 'Hello'")
        else:
            out.print(f"follow it: wharf ops watch {operation_id}")

    emit(output, shown, human)


def _explain_refusal(error: CliError) -> None:
    details = (error.document or {}).get("details") or {}
    for node in details.get("nodes", []):
        say(f"  {node['node_name']}: {node['code']}: {in_options(node['message'])}")
    for suggestion in details.get("suggestions", []):
        say(f"  would help: {in_options(suggestion['message'])}")


def _with_log_tail(failure: CliError, client: Client, instance_id: str) -> CliError:
    """Add the runner's last words to a failed launch, and say them."""
    try:
        recorded = client.get(f"/api/v1/instances/{path_of(instance_id)}").get("failure") or {}
    except CliError:
        recorded = {}  # it was cancelled: nothing is left to show
    log_tail: list[str] = recorded.get("log_tail", [])
    for line in log_tail[-SAID_LOG_LINES:]:
        say(f"  | {line}")
    document = failure.document or {}
    details = document.get("details", {}) | {"instance_id": instance_id, "log_tail": log_tail}
    failure.document = document | {"details": details}
    return failure


def show_instances(output: Format) -> None:
    """List all instances."""
    client = Client()
    document = client.get("/instance")

    def human(out: Console) -> None:
        if not document["instances"]:
            out.print("no instances; launch one with: wharf launch MODEL --wait")
            return
        names = node_names(client)
        print_table(
            out,
            (
                Column("instance", whole=True),
                Column("model", whole=True),
                Column("status"),
                Column("runner", wide_only=True),
                Column("nodes"),
                Column("backend", wide_only=True),
                Column("window", wide_only=True),
                Column("memory", wide_only=True),
                Column("age"),
            ),
            [_row(instance, names) for instance in document["instances"]],
        )

    emit(output, document, human)


def _row(instance: dict[str, Any], names: dict[str, str]) -> tuple[str, ...]:
    return (
        instance["instance_id"],
        instance["model_id"],
        instance["status"],
        ", ".join(runner["state"] for runner in instance["runners"]) or "-",
        ", ".join(named(names, instance["node_ids"])),
        instance["backend"],
        "?" if instance["context_tokens"] is None else str(instance["context_tokens"]),
        size(reserved) if (reserved := sum(instance["memory_by_node"].values())) else "–",
        _age(instance["created_at"]),
    )


def show_instance(instance_id: str, output: Format) -> None:
    """Everything about one instance."""
    client = Client()
    with _an_instance(client, instance_id):
        document = client.get(f"/api/v1/instances/{path_of(instance_id)}")

    def human(out: Console) -> None:
        from wharfinger.cli.plan import plan_lines

        out.print(
            styled((document["instance_id"], "bold"), f"  {document['model_id']}  {document['status']}")
        )
        if document["status_reason"]:
            out.print(f"  reason     {document['status_reason']}")
        out.print(f"  operation  {document['operation_id']}")
        for runner in document["runners"]:
            where = runner["endpoint"] or "no endpoint"
            out.print(f"  runner     {runner['runner_id']}  {runner['state']}  pid {runner['pid']}  {where}")
        if document["status"] == "failed":
            out.print("  memory     – (released; what follows is what was planned)")
        for line in plan_lines(document["plan"], node_names(client)):
            out.print(f"  {line}")
        failure = document["failure"]
        if failure:
            out.print(f"  failure    {failure['code']}: {failure['message']}")
            for line in failure["log_tail"]:
                out.print(f"    | {line}")

    emit(output, document, human)


@contextmanager
def _an_instance(client: Client, wanted: str) -> Iterator[None]:
    """Where there is no instance ``wanted`` but a model of that id runs, the error names the model's instances."""
    try:
        yield
    except CliError as error:
        if error.status == 404:
            listed = client.get("/instance")["instances"]
            found = [each["instance_id"] for each in listed if each["model_id"] == wanted]
            if found:
                message = f"{error}; {wanted} is a model; its instances are: {', '.join(found)}"
                raise CliError(message, error.code, error.document) from error
        raise


def print_logs(instance_id: str, *, follow: bool, rank: int) -> None:
    """Print a runner's log, following it if asked."""
    client = Client()
    offset = 0
    while True:
        with _an_instance(client, instance_id):
            chunk = client.get(f"/api/v1/instances/{path_of(instance_id)}/logs", offset=offset, rank=rank)
        sys.stdout.write(chunk["text"])
        sys.stdout.flush()
        if chunk["next_offset"] == offset and (chunk["ended"] or not follow):
            return
        if chunk["next_offset"] == offset:
            time.sleep(_FOLLOW_S)
        offset = chunk["next_offset"]


def run_stop(instance_id: str, *, wait: bool, force: bool, output: Format) -> None:
    """Delete an instance; with ``wait``, until nothing of it is left. ``force`` forgets one whose nodes left."""
    client = Client()
    with _an_instance(client, instance_id):
        answer = client.delete(f"/instance/{path_of(instance_id)}", force="true" if force else None)
    operation_id = answer["operation_id"]
    if operation_id is None:
        done = "forgotten; nobody could look whether its processes ended"
    elif wait:
        operation = follow_operation(client, operation_id)
        if operation["state"] != "cancelled":  # a launch that was cancelled is a stop as well
            require_success(operation)
        answer["state"] = operation["state"]
        done = f"stopped ({operation['message']})"
    else:
        done = f"stopping; follow it: wharf ops watch {operation_id}"
    emit(output, answer, lambda out: out.print(f"{instance_id} {done}"))


def _age(created_at: str) -> str:
    seconds = (datetime.now(UTC) - datetime.fromisoformat(created_at)).total_seconds()
    for limit, unit, divisor in ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"
