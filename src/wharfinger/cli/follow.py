"""Following an operation: a live line on stderr that survives lost connections."""

from __future__ import annotations

from typing import Any

from wharfinger.cli.client import Client, path_of
from wharfinger.cli.events import operation_events
from wharfinger.cli.output import CliError, Exit, console


def follow_operation(client: Client, operation_id: str) -> dict[str, Any]:
    """Show an operation's progress until it ends; returns the operation.

    Raises:
        CliError: the control plane stayed away.
    """
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    err = console(stderr=True)
    shown = client.get(f"/api/v1/operations/{path_of(operation_id)}")
    try:
        with Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%", markup=False),
            TimeElapsedColumn(),
            console=err,
            transient=not err.is_terminal,
        ) as progress:
            task = progress.add_task(
                f"{shown['kind']}  {shown['message']}", total=100, completed=shown["progress"]
            )
            for name, data in operation_events(client, operation_id):
                if name == "end":
                    progress.update(
                        task, completed=data["progress"], description=f"{data['kind']}  {data['state']}"
                    )
                    return data
                progress.update(task, description=f"{shown['kind']}  {data['message'] or data['type']}")
                completed = (data.get("payload") or {}).get("progress")
                if completed is not None:
                    progress.update(task, completed=completed)
                if not err.is_terminal:
                    err.print(f"{data['sequence']:>4}  {data['type']:<20} {data['message']}")
    except KeyboardInterrupt:
        err.print(f"the work goes on; follow it again with: wharf ops watch {operation_id}")
        raise
    raise CliError(f"the events of {operation_id} ended before it did", Exit.UNREACHABLE)


def failure_of(operation: dict[str, Any]) -> CliError | None:
    """An operation that did not succeed as an error with its code and message; ``None`` when it did."""
    if operation["state"] == "succeeded":
        return None
    error = operation["error"] or {"code": operation["state"], "message": operation["message"]}
    reason = f"{error['code']}: {error['message']}" if operation["error"] else operation["message"]
    return CliError(
        f"{operation['kind']} of {operation['resource']} {operation['state']}: {reason}",
        document=error | {"details": {"operation_id": operation["id"], "state": operation["state"]}},
    )


def require_success(operation: dict[str, Any]) -> None:
    """Raise what :func:`failure_of` finds.

    Raises:
        CliError
    """
    failure = failure_of(operation)
    if failure is not None:
        raise failure
