"""``doctor``: is this machine fit, and does the control plane answer?"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wharfinger.cli.output import CliError, Exit, Format, emit, size, styled

if TYPE_CHECKING:
    from rich.console import Console

LOW_DISK_BYTES = 10 << 30


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at. ``ok``, ``warn`` or ``fail``, and what to do about it."""

    name: str
    level: str
    message: str
    remediation: str | None = None


def run_doctor(output: Format) -> None:
    """Run every check; a failed one makes the exit code 1."""
    from wharfinger.cli.settings import settings_from

    settings = settings_from()
    checks = [
        _python(),
        _data_dir(settings.data_dir),
        _disk(settings.data_dir),
        *_hardware(settings.data_dir),
        _control_plane(settings.data_dir, settings.host, settings.port),
    ]

    def human(out: Console) -> None:
        for check in checks:
            colour = {"ok": "green", "warn": "yellow"}.get(check.level, "red")
            out.print(styled((f"{check.level:<5}", colour), f" {check.name:<14} {check.message}"))
            if check.remediation:
                out.print(f"      {'':<14} → {check.remediation}")

    failed = [check.name for check in checks if check.level == "fail"]
    count = "1 check" if len(failed) == 1 else f"{len(failed)} checks"
    failure = CliError(f"{count} failed: {', '.join(failed)}") if failed else None
    emit(output, {"ok": not failed, "checks": [asdict(check) for check in checks]}, human, failure)


def _python() -> Check:
    found = platform.python_version()
    return Check("python", "ok", f"{found} on {platform.system()} {platform.machine()}")


def _data_dir(path: Path) -> Check:
    existing = _existing(path)
    remediation = "make it writable or set WHARF_DATA_DIR"
    if not existing.is_dir():
        return Check("data directory", "fail", f"{existing} is a file, not a directory", remediation)
    try:
        with tempfile.TemporaryFile(dir=existing) as probe:
            probe.write(b"can this be written?")
    except OSError as error:
        return Check("data directory", "fail", f"{path} cannot be written ({error.strerror})", remediation)
    state = "exists" if existing == path else "will be made on the first start"
    return Check("data directory", "ok", f"{path} ({state})")


def _disk(path: Path) -> Check:
    existing = _existing(path)
    free = shutil.disk_usage(existing).free
    if free < LOW_DISK_BYTES:
        return Check("disk", "warn", f"{size(free)} free", "free some space: models are large")
    return Check("disk", "ok", f"{size(free)} free")


def _hardware(data_dir: Path) -> list[Check]:
    """Engines and devices as the node itself will report them."""
    from wharfinger.fleet.telemetry import Telemetry

    telemetry = Telemetry("doctor", platform.node(), "full", _existing(data_dir))
    telemetry.find_engines()
    report = telemetry.measure()
    checks = [
        Check("engine", "ok", f"{engine.engine} {engine.version or '?'} ({', '.join(engine.backends)})")
        for engine in report.engines
    ] or [Check("engine", "fail", "none found", "install one: pip install 'wharfinger[llama]'")]
    checks += [Check("GPU", "ok", f"{device.name}, {size(device.total_bytes)}") for device in report.devices]
    checks += [Check("not measured", "ok", f"{fact}: {reason}") for fact, reason in report.missing.items()]
    return checks


def _control_plane(data_dir: Path, host: str, port: int) -> Check:
    from wharfinger.cli.client import Client

    client = Client(data_dir)
    try:
        live = client.get("/livez")
        problems = client.problems()
        if problems:
            return Check("control plane", "fail", f"not ready: {'; '.join(problems)}", "its log says more")
        who = client.get("/api/v1/whoami")
    except CliError as error:
        if error.code is not Exit.UNREACHABLE:
            return Check("control plane", "fail", str(error))
        return _port(host, port)
    return Check("control plane", "ok", f"{live['version']} at {client.url}, this key is {who['role']}")


def _port(host: str, port: int) -> Check:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return Check(
                "control plane",
                "fail",
                f"not running, and port {port} is taken ({error.strerror})",
                "choose --port",
            )
    return Check("control plane", "warn", "not running", "start it with: wharf up")


def _existing(path: Path) -> Path:
    """The directory itself, or the nearest one above it that exists."""
    # Path.exists raises where a directory above may not be entered.
    return next(parent for parent in (path, *path.parents) if os.path.exists(parent))
