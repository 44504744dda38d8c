"""``demo``: the main job on real parts, from nothing to an answer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wharfinger.catalog.demo import DEMO_MODEL_ID, demo_card, ensure_demo_model
from wharfinger.catalog.errors import CatalogError
from wharfinger.catalog.library import CardSource
from wharfinger.cli.chat import ask
from wharfinger.cli.client import Client
from wharfinger.cli.follow import follow_operation, require_success
from wharfinger.cli.output import CliError, console, say, styled
from wharfinger.cli.plan import print_previews
from wharfinger.cli.settings import settings_from
from wharfinger.cli.up import configure_logging, run_server
from wharfinger.server import Started, serve

if TYPE_CHECKING:
    from wharfinger.settings import Settings

QUESTION = "In one sentence: what does a harbour master do?"
MAX_TOKENS = 96


def run_demo(*, data_dir: Path | None, port: int | None, exit_after: bool) -> None:
    """Start, show the placement, launch, ask, and serve until Ctrl-C (or tear down at once).

    Raises:
        CliError: a step did not work out. Whatever else breaks the tour is raised as well, after the teardown.
    """
    settings = demo_settings(data_dir, port)
    configure_logging("warning")
    begun = time.monotonic()

    async def tour(started: Started) -> None:
        up_s = time.monotonic() - begun
        console().print(
            styled(
                ("1. Control plane", "bold"), f" up at {started.url} in {up_s:.2f} s ({settings.data_dir})"
            )
        )
        try:
            path = await asyncio.to_thread(ensure_demo_model, settings.models_dir, say)
            await started.control.catalog.add_card(demo_card(path), CardSource.INSTALLED, path)
        except CatalogError as error:
            raise CliError(str(error)) from error
        await _in_daemon_thread(_tour, settings, started.url, exit_after)
        if exit_after:
            started.stop()

    run_server(serve(settings, tour))
    console().print("everything is down; nothing is left running")


def demo_settings(data_dir: Path | None, port: int | None) -> Settings:
    """Settings with a data directory of the demo's own, unless one was named: it touches no installation in use."""
    settings = settings_from(data_dir=data_dir, port=port)
    if "data_dir" in settings.model_fields_set:
        return settings
    return settings_from(data_dir=settings.data_dir.with_name("wharfinger-demo"), port=port)


def _tour(settings: Settings, url: str, exit_after: bool) -> None:
    """The steps a user would take, through the same HTTP API the CLI uses."""
    out = console()
    client = Client(settings.data_dir, url=url)
    document = client.get("/instance/previews", model_id=DEMO_MODEL_ID)
    out.print(f"2. Where can {DEMO_MODEL_ID} run?", style="bold")
    print_previews(out, document)
    instance = _running(client)
    if instance is None:
        out.print("3. Launch", style="bold")
        began = time.monotonic()
        answer = client.post("/place_instance", {"model_id": DEMO_MODEL_ID})
        operation = follow_operation(client, answer["operation_id"])
        require_success(operation)
        total_s = time.monotonic() - began
        load_s = operation["result"]["engine_load_s"]
        out.print(f"   ready in {total_s:.2f} s, of which the engine loaded the model for {load_s:.2f} s")
        instance = client.get(f"/api/v1/instances/{answer['instance_id']}")
    else:
        out.print(
            styled(("3. Launch", "bold"), f" {instance['instance_id']} from the last run is coming back")
        )
        require_success(follow_operation(client, instance["operation_id"]))
    out.print(styled(("4. Ask", "bold"), f" (streamed through the OpenAI endpoint)\n   > {QUESTION}"))
    answer = ask(client, DEMO_MODEL_ID, [{"role": "user", "content": QUESTION}], MAX_TOKENS)
    rate = "?" if answer.tokens_per_s is None else f"{answer.tokens_per_s:.0f}"
    out.print(
        f"   first token after {answer.first_token_s * 1000:.0f} ms, {rate} tokens/s, {answer.tokens} tokens"
    )
    if exit_after:
        out.print("5. Stop", style="bold")
        stopped = client.delete(f"/instance/{instance['instance_id']}")
        require_success(follow_operation(client, stopped["operation_id"]))
    else:
        _what_next(settings, client)


async def _in_daemon_thread(work: Callable[..., None], *arguments: object) -> None:
    """Run blocking work that must not hold up the end of the process: Ctrl-C then leaves it behind."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        try:
            work(*arguments)
        except BaseException as error:
            outcome: BaseException | None = error
        else:
            outcome = None
        with suppress(RuntimeError):  # the loop is closed: the process is ending
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=run, daemon=True).start()
    await done


def _running(client: Client) -> dict[str, Any] | None:
    """The demo model's instance of an earlier run, which the control plane is bringing back."""
    for instance in client.get("/instance")["instances"]:
        if instance["model_id"] == DEMO_MODEL_ID and instance["status"] in ("launching", "ready"):
            return instance
    return None


def _what_next(settings: Settings, client: Client) -> None:
    out = console()
    out.print("5. Yours", style="bold")
    out.print(f"   dashboard   {client.url}/   (key: cat {settings.data_dir / 'admin.key'})")
    out.print(f"   OpenAI      {client.url}/v1  model {DEMO_MODEL_ID}, API key as above")
    out.print(f"   CLI         WHARF_DATA_DIR={settings.data_dir} wharf status")
    out.print("   stop        Ctrl-C")
