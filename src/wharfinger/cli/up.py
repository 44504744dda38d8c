"""``wharf up``: the server in the foreground."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING

import structlog

from wharfinger.cli.output import CliError, Exit, console, styled
from wharfinger.cli.settings import settings_from
from wharfinger.server import Started, StartError, serve
from wharfinger.store.errors import StoreError

if TYPE_CHECKING:
    from wharfinger.settings import Settings


def configure_logging(level: str) -> None:
    """Structured lines on stderr; nothing below ``level``."""
    numeric = logging.getLevelName(level.upper())
    if not isinstance(numeric, int):
        raise CliError(
            f"WHARF_LOG_LEVEL: {level!r} is unknown; accepted: debug, info, warning, error", Exit.USAGE
        )
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(
                colors=False,
                exception_formatter=structlog.dev.plain_traceback,  # Rich's shows locals: secrets among them
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(numeric),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )


def run_up(**options: object) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    settings = settings_from(**options)
    configure_logging(settings.log_level)

    async def announce(started: Started) -> None:
        has_models = bool(await started.control.catalog.list())
        out = console()
        out.print(
            styled("Wharfinger is up at ", (started.url, "bold"), "  (dashboard, API and OpenAI endpoint)")
        )
        out.print(f"  data directory  {settings.data_dir}")
        _announce_key(started, settings)
        steps = "wharf models list · wharf plan MODEL · wharf launch MODEL --wait"
        out.print(
            f"  next            {steps if has_models else 'wharf models add FILE.gguf (the catalog is empty)'}"
        )
        out.print("  stop            Ctrl-C (running models end with it and come back with the next start)")

    run_server(serve(settings, announce))


def _announce_key(started: Started, settings: Settings) -> None:
    out = console()
    if settings.no_auth:
        out.print(styled("  access          ", ("open to everybody on this machine (--no-auth)", "yellow")))
    elif started.first_admin_key is not None:
        out.print(styled("  admin key       ", (started.first_admin_key, "bold")))
        out.print(
            f"                  shown once; kept for the CLI in {settings.data_dir / 'admin.key'} (0600)"
        )


def run_server(work: object) -> None:
    """Run the server coroutine on uvloop, turning start errors into one paragraph.

    Raises:
        CliError: the control plane could not start.
    """
    import uvloop

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work)  # type: ignore[arg-type]
    except (StartError, StoreError) as error:
        raise CliError(str(error)) from error
