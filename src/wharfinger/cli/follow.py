"""Following an operation: a live line on stderr that survives lost connections."""

from __future__ import annotations

from typing import Any

from wharfinger.cli.client import Client
from wharfinger.cli.output import CliError, Exit, console


def follow_operation(client: Client, operation_id: str) -> dict[str, Any]:
    """Show an operation's progress until it ends; returns the operation.

    Raises:
        CliError: the control plane stayed away.
    """
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    err = console(stderr=True)
    shown = client.get(f"/api/v1/operations/{operation_id}")
    try:
        with Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            console=err,
            transient=not err.is_terminal,
        ) as progress:
            task = progress.add_task(
                f"{shown['kind']}  {shown['message']}", total=100, completed=shown["progress"]
            )
            for name, data in client.follow(operation_id):
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


def require_success(operation: dict[str, Any]) -> None:
    """Turn an operation that did not succeed into an error with its code and message.

    Raises:
        CliError
    """
    if operation["state"] == "succeeded":
        return
    error = operation.get("error") or {}
    reason = f"{error.get('code')}: {error.get('message')}" if error else operation["message"]
    raise CliError(f"{operation['kind']} of {operation['resource']} {operation['state']}: {reason}")
