"""``wharf``: the command line. Commands import what they need when they run, so that ``--help`` is instant."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from wharfinger.cli.output import CliError, Exit, Format, Output, fail, print_json

HELP = """One control plane for models served on machines you own and machines you rent.

Start it with `wharf up`, see what could run with `wharf plan MODEL`, run it with `wharf launch MODEL --wait`,
talk to it with `wharf chat MODEL`."""

app = typer.Typer(help=HELP, add_completion=False, rich_markup_mode=None, no_args_is_help=True)
models_app = typer.Typer(
    help="Models this installation may run.", no_args_is_help=True, rich_markup_mode=None
)
ops_app = typer.Typer(
    help="Durable work: see it, follow it, cancel it.", no_args_is_help=True, rich_markup_mode=None
)
keys_app = typer.Typer(help="API keys (needs an admin key).", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(models_app, name="models")
app.add_typer(ops_app, name="ops")
app.add_typer(keys_app, name="keys")


class Shardings(StrEnum):
    """The planner's shardings, which are not imported here: ``--help`` is instant."""

    PIPELINE = "Pipeline"
    TENSOR = "Tensor"


class Roles(StrEnum):
    """The roles of API keys, not imported here for the same reason."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


ContextOption = Annotated[
    int | None,
    typer.Option(
        "--context",
        metavar="TOKENS",
        min=256,
        max=1048576,
        help="Window of the model; may lower what fits, never raise it",
    ),
]
ExcludeOption = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="NODE", help="Leave this node out, by name or id; may be repeated"),
]
MinNodesOption = Annotated[
    int, typer.Option("--min-nodes", metavar="N", min=1, help="Least number of nodes to use")
]
BackendOption = Annotated[
    str | None,
    typer.Option(
        "--backend", metavar="TAG", help="Only this engine, or engine with its compute, e.g. llama_cpp-cpu"
    ),
]
NodeOption = Annotated[
    list[str] | None,
    typer.Option("--node", metavar="NODE", help="This node must take part, by name or id; may be repeated"),
]
ShardingOption = Annotated[
    Shardings,
    typer.Option("--sharding", case_sensitive=False, help="How several nodes share the model"),
]


@app.command()
def up(
    data_dir: Annotated[
        Path | None, typer.Option(help="Where everything is kept [default: ~/.local/share/wharfinger]")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to bind [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes any free one [default: 7300]")] = None,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Ask nobody for a key; loopback only")] = False,
    node_name: Annotated[
        str | None, typer.Option(help="Name of this machine [default: its host name]")
    ] = None,
) -> None:
    """Run the control plane, this machine as a node, and the gateway, until Ctrl-C."""
    from wharfinger.cli.up import run_up

    run_up(data_dir=data_dir, host=host, port=port, no_auth=no_auth, node_name=node_name)


@app.command()
def demo(
    data_dir: Annotated[Path | None, typer.Option(help="Where the demo keeps its data")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes any free one [default: 7300]")] = None,
    exit_: Annotated[
        bool, typer.Option("--exit", help="Tear down and exit instead of serving until Ctrl-C")
    ] = False,
) -> None:
    """From nothing to an answer: start, plan, launch a small real model, ask it a question."""
    from wharfinger.cli.demo import run_demo

    run_demo(data_dir=data_dir, port=port, exit_after=exit_)


@app.command()
def status(output: Output = Format.HUMAN) -> None:
    """The control plane at a glance: nodes, instances, unresolved work, recent failures."""
    from wharfinger.cli.fleet import show_status

    show_status(output)


@app.command()
def nodes(output: Output = Format.HUMAN) -> None:
    """Machines you own: memory, devices, engines, health."""
    from wharfinger.cli.fleet import show_nodes

    show_nodes(output)


@app.command()
def doctor(output: Output = Format.HUMAN) -> None:
    """Check this machine and the control plane; exit code 1 when something is broken."""
    from wharfinger.cli.doctor import run_doctor

    run_doctor(output)


@app.command()
def version(output: Output = Format.HUMAN) -> None:
    """Print the version."""
    from wharfinger import __version__
    from wharfinger.cli.output import emit

    emit(output, {"version": __version__}, lambda console: console.print(f"wharfinger {__version__}"))


@app.command()
def plan(
    model: Annotated[
        str, typer.Argument(help="Model id; with --fleet also a GGUF file, a model folder or a card as JSON")
    ],
    context: ContextOption = None,
    exclude: ExcludeOption = None,
    node: NodeOption = None,
    min_nodes: MinNodesOption = 1,
    sharding: Annotated[
        Shardings | None,
        typer.Option("--sharding", case_sensitive=False, help="Only plans of this kind [default: both]"),
    ] = None,
    backend: BackendOption = None,
    explain: Annotated[
        str | None,
        typer.Option("--explain", metavar="NODE", help="Everything about one node, by name or id"),
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "--what-if",
            metavar="MACHINES",
            help="Add machines you do not have, e.g. +1xH100-80GB or +1xcpu-64GB; may be repeated",
        ),
    ] = None,
    fleet: Annotated[
        Path | None,
        typer.Option(
            "--fleet",
            metavar="FILE",
            exists=True,
            help="Plan for the machines described in this YAML file; needs no control plane",
        ),
    ] = None,
    output: Output = Format.HUMAN,
) -> None:
    """Where could this model run now, best first; and where not, why not. Changes nothing."""
    from wharfinger.cli.plan import PlanOptions, run_plan

    options = PlanOptions(
        model=model,
        context_tokens=context,
        excluded=tuple(exclude or ()),
        required=tuple(node or ()),
        min_nodes=min_nodes,
        sharding=sharding,
        backend=backend,
        explain=explain,
        what_if=tuple(what_if or ()),
        fleet=fleet,
    )
    run_plan(options, output)


@app.command()
def launch(
    model: Annotated[str, typer.Argument(help="Model id")],
    wait: Annotated[bool, typer.Option("--wait", help="Follow the launch until the model answers")] = False,
    context: ContextOption = None,
    exclude: ExcludeOption = None,
    node: NodeOption = None,
    min_nodes: MinNodesOption = 1,
    sharding: ShardingOption = Shardings.PIPELINE,
    backend: BackendOption = None,
    output: Output = Format.HUMAN,
) -> None:
    """Run a model where the planner thinks best."""
    from wharfinger.cli.instances import run_launch

    body = {
        "model_id": model,
        "sharding": sharding,
        "min_nodes": min_nodes,
        "excluded_nodes": exclude or [],
        "node_ids": node or [],
        "backend": backend,
        "context_tokens": context,
    }
    run_launch(body, wait=wait, output=output)


@app.command()
def ps(output: Output = Format.HUMAN) -> None:
    """Instances: what runs where, and in which state."""
    from wharfinger.cli.instances import show_instances

    show_instances(output)


@app.command()
def show(instance: str, output: Output = Format.HUMAN) -> None:
    """One instance: placement, runners, memory, and why it failed."""
    from wharfinger.cli.instances import show_instance

    show_instance(instance, output)


@app.command()
def logs(
    instance: str,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing what is added")] = False,
    rank: Annotated[int, typer.Option(min=0, help="Which runner of a sharded instance")] = 0,
) -> None:
    """Print a runner's log."""
    from wharfinger.cli.instances import print_logs

    print_logs(instance, follow=follow, rank=rank)


@app.command()
def stop(
    instance: str,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until no process of it is left")
    ] = True,
    force: Annotated[
        bool, typer.Option("--force", help="Also when its node left the fleet and cannot be asked any more")
    ] = False,
    output: Output = Format.HUMAN,
) -> None:
    """Stop an instance and release what it holds."""
    from wharfinger.cli.instances import run_stop

    run_stop(instance, wait=wait, force=force, output=output)


@app.command()
def chat(
    model: str,
    message: Annotated[
        str | None, typer.Option("--message", "-m", help="Ask this and exit; without it, a conversation")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens", min=1, help="Longest answer [default: 512, or half the window if that is less]"
        ),
    ] = None,
) -> None:
    """Talk to a running model. Ctrl-C ends an answer, Ctrl-D the conversation."""
    from wharfinger.cli.chat import run_chat

    run_chat(model, message, max_tokens)


@models_app.command("list")
def models_list(output: Output = Format.HUMAN) -> None:
    """List the catalog."""
    from wharfinger.cli.models import list_models

    list_models(output)


@models_app.command("show")
def models_show(model: str, output: Output = Format.HUMAN) -> None:
    """Show one model's card."""
    from wharfinger.cli.models import show_model

    show_model(model, output)


@models_app.command("add")
def models_add(
    file: Annotated[
        Path,
        typer.Argument(
            help="A GGUF file, or a folder with safetensors and config.json, on the control plane's machine"
        ),
    ],
    model_id: Annotated[str | None, typer.Option("--id", help="Name to serve it under")] = None,
    output: Output = Format.HUMAN,
) -> None:
    """Add a model to the catalog; its card is read from the headers of its files."""
    from wharfinger.cli.models import add_model

    add_model(file, model_id, output)


@models_app.command("remove")
def models_remove(model: str, output: Output = Format.HUMAN) -> None:
    """Take a model out of the catalog; its file stays, and no instance may use it."""
    from wharfinger.cli.models import remove_model

    remove_model(model, output)


@ops_app.command("list")
def ops_list(
    kind: Annotated[str | None, typer.Option(help="e.g. instance.launch")] = None,
    state: Annotated[
        list[str] | None, typer.Option(help="pending, leased, running, waiting, …; may be repeated")
    ] = None,
    resource: Annotated[str | None, typer.Option(help="e.g. an instance id")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500)] = 50,
    cursor: Annotated[str | None, typer.Option(help="Where an earlier list broke off")] = None,
    output: Output = Format.HUMAN,
) -> None:
    """List operations, newest first."""
    from wharfinger.cli.ops import list_operations

    list_operations(kind, state or [], resource, limit, cursor, output)


@ops_app.command("show")
def ops_show(operation: str, output: Output = Format.HUMAN) -> None:
    """One operation: state, steps, error."""
    from wharfinger.cli.ops import show_operation

    show_operation(operation, output)


@ops_app.command("watch")
def ops_watch(operation: str, output: Output = Format.HUMAN) -> None:
    """Follow an operation to its end. Ctrl-C ends the watching, never the work."""
    from wharfinger.cli.ops import watch_operation

    watch_operation(operation, output)


@ops_app.command("cancel")
def ops_cancel(
    operation: str,
    wait: Annotated[bool, typer.Option("--wait", help="Follow it until the cleanup is done")] = False,
    output: Output = Format.HUMAN,
) -> None:
    """Ask to cancel an operation; its cleanup runs."""
    from wharfinger.cli.ops import cancel_operation

    cancel_operation(operation, wait=wait, output=output)


@keys_app.command("list")
def keys_list(output: Output = Format.HUMAN) -> None:
    """List API keys (never their secrets)."""
    from wharfinger.cli.keys import list_keys

    list_keys(output)


@keys_app.command("create")
def keys_create(
    name: str,
    role: Annotated[Roles, typer.Option(help="Each may do what those before it may")] = Roles.VIEWER,
    output: Output = Format.HUMAN,
) -> None:
    """Make an API key; its secret is shown once."""
    from wharfinger.cli.keys import create_key

    create_key(name, role, output)


@keys_app.command("revoke")
def keys_revoke(key_id: str, output: Output = Format.HUMAN) -> None:
    """Revoke an API key; it stops working at once."""
    from wharfinger.cli.keys import revoke_key

    revoke_key(key_id, output)


def main() -> None:
    """Entry point: errors become one paragraph on stderr, an exit code, and with ``--output json`` a document."""
    format_ = _asked_format(sys.argv[1:])
    try:
        app(standalone_mode=True)
    except CliError as error:
        fail(error, format_)
        sys.exit(error.code)
    except SystemExit as leave:
        # Typer has told a wrong command line on stderr; its exception is the context of the exit.
        describe = getattr(leave.__context__, "format_message", None)
        if format_ is Format.JSON and describe is not None:
            print_json(CliError(describe(), Exit.USAGE).to_json())
        raise
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)


def _asked_format(arguments: list[str]) -> Format:
    """What stdout is to carry, also when the command line is wrong and was never parsed."""
    pairs = zip(arguments, [*arguments[1:], ""], strict=True)
    asked = ("--output=json", "-ojson", "-o=json")
    if any(word in asked or (word in ("--output", "-o") and value == "json") for word, value in pairs):
        return Format.JSON
    return Format.HUMAN
