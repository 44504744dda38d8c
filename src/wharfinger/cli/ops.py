"""``ops list``, ``show``, ``watch`` and ``cancel``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wharfinger.cli.client import Client, path_of
from wharfinger.cli.follow import failure_of, follow_operation
from wharfinger.cli.output import Format, emit, styled
from wharfinger.cli.tables import Column, print_table

if TYPE_CHECKING:
    from rich.console import Console


def list_operations(
    kind: str | None,
    states: list[str],
    resource: str | None,
    limit: int,
    cursor: str | None,
    output: Format,
) -> None:
    """List operations, newest first."""
    document = Client().get(
        "/api/v1/operations", kind=kind, state=states, resource=resource, limit=limit, cursor=cursor
    )

    def human(out: Console) -> None:
        if not document["operations"]:
            out.print("no operations")
            return
        print_table(
            out,
            (
                Column("operation", whole=True),
                Column("kind", whole=True),
                Column("resource", whole=True, wide_only=True),
                Column("state"),
                Column("%", wide_only=True),
                Column("attempt", wide_only=True),
                Column("message"),
            ),
            [_row(operation) for operation in document["operations"]],
        )
        if document["next_cursor"]:
            out.print(
                f"there are older ones: add --cursor {document['next_cursor']}", soft_wrap=True, markup=False
            )

    emit(output, document, human)


def _row(operation: dict[str, Any]) -> tuple[str, ...]:
    error = operation["error"]
    return (
        operation["id"],
        operation["kind"],
        operation["resource"],
        operation["state"],
        str(operation["progress"]),
        f"{operation['attempt']}/{operation['max_attempts']}",
        f"{error['code']}: {error['message']}" if error else operation["message"],
    )


def show_operation(operation_id: str, output: Format) -> None:
    """Show one operation with its steps."""
    document = Client().get(f"/api/v1/operations/{path_of(operation_id)}")
    emit(output, document, lambda out: print_operation(out, document))


def watch_operation(operation_id: str, output: Format) -> None:
    """Follow an operation to its end; exit code 1 when it did not succeed."""
    operation = follow_operation(Client(), operation_id)
    emit(output, operation, lambda out: print_operation(out, operation), failure_of(operation))


def cancel_operation(operation_id: str, *, wait: bool, output: Format) -> None:
    """Ask to cancel."""
    client = Client()
    operation = client.post(f"/api/v1/operations/{path_of(operation_id)}/cancel")
    if wait:
        operation = follow_operation(client, operation_id)
    emit(output, operation, lambda out: print_operation(out, operation))


def print_operation(out: Console, operation: dict[str, Any]) -> None:
    """An operation and its steps; one that the end of the operation cut off was not finished."""
    out.print(styled((operation["id"], "bold"), f"  {operation['kind']}  {operation['resource']}"))
    out.print(f"  state     {operation['state']}  {operation['progress']}%  {operation['message']}")
    out.print(f"  attempts  {operation['attempt']} of {operation['max_attempts']}")
    if operation["waiting_reason"]:
        out.print(f"  waiting   {operation['waiting_reason']}")
    if operation["error"]:
        out.print(f"  error     {operation['error']['code']}: {operation['error']['message']}")
    for step in operation.get("steps", []):
        cut_off = operation["completed_at"] is not None and step["status"] == "running"
        out.print(
            f"  step      {step['name']:<20} {'cut off' if cut_off else step['status']}  {step['updated_at']}"
        )
