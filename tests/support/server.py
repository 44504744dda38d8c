"""A real control plane in a process of its own, started and stopped the way a user does."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import psutil

from support.local_node import demo_model_path
from wharfinger.access.secrets import InstallationSecret

DEMO_MODEL_ID = "gemma-3-270m"
NODE_NAME = "lab-1"
START_S = 60.0


class Server:
    """``wharf up`` on a data directory; ``url`` and ``key`` once it is ready."""

    def __init__(self, data_dir: Path, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self.data_dir = data_dir
        self._arguments = ("--node-name", NODE_NAME, *arguments)
        own = {name: value for name, value in os.environ.items() if not name.startswith("WHARF_")}
        self._environment = {**own, "WHARF_DATA_DIR": str(data_dir), **(environment or {})}
        self.process: subprocess.Popen[str] | None = None
        self.log = data_dir.with_suffix(".log")

    def start(self) -> Server:
        """Start and wait until it is ready."""
        (self.data_dir / "endpoint").unlink(missing_ok=True)
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "wharfinger.cli", "up", "--port", "0", *self._arguments],
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S
        while not (self.data_dir / "endpoint").exists():
            assert self.process.poll() is None, f"wharf up ended:\n{self.log.read_text()}"
            assert time.monotonic() < deadline, f"wharf up is not ready:\n{self.log.read_text()}"
            time.sleep(0.02)
        return self

    @property
    def url(self) -> str:
        return (self.data_dir / "endpoint").read_text().strip()

    @property
    def key(self) -> str:
        return (self.data_dir / "admin.key").read_text().strip()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def client(self, key: str | None = None) -> httpx.Client:
        """An HTTP client that carries a key (the admin's by default)."""
        return httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key or self.key}"},
            timeout=120,
            trust_env=False,
        )

    def wharf(self, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run the CLI against this server."""
        return wharf(*arguments, environment=self._environment, timeout_s=timeout_s)

    def stop(self, signum: int = signal.SIGTERM, timeout_s: float = 60) -> int:
        """Send a signal and wait for the end; returns the exit code."""
        assert self.process is not None
        self.process.send_signal(signum)
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """``kill -9``, if it still runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def engine_pids(self) -> list[int]:
        """Engine processes of this data directory, whoever their parent is now."""
        return [p.pid for p in _engines() if self._owns(p)]

    def _owns(self, process: psutil.Process) -> bool:
        try:
            return Path(process.cwd()).is_relative_to(self.data_dir.resolve())
        except (psutil.Error, OSError):
            return False

    def add_demo_model(self) -> dict[str, Any]:
        """Put the demo model into the catalog as ``gemma-3-270m``."""
        with self.client() as client:
            response = client.post(
                "/api/v1/models", json={"path": str(demo_model_path()), "model_id": DEMO_MODEL_ID}
            )
        assert response.status_code == 201, response.text
        return response.json()

    def launch(self, context_tokens: int = 1024) -> dict[str, Any]:
        """Place the demo model; returns the acknowledgement at once."""
        with self.client() as client:
            response = client.post(
                "/place_instance", json={"model_id": DEMO_MODEL_ID, "context_tokens": context_tokens}
            )
        assert response.status_code == 200, response.text
        return response.json()

    def engine(self) -> httpx.Client:
        """A client of the only routed engine itself, past the gateway."""
        with closing(sqlite3.connect(self.data_dir / "wharfinger.db")) as database:
            ((target_id, url),) = database.execute("SELECT target_id, base_url FROM targets")
        secret = InstallationSecret.load_or_create(self.data_dir / "installation.secret")
        headers = {"Authorization": f"Bearer {secret.runner_key(target_id)}"}
        return httpx.Client(base_url=url, headers=headers, timeout=120, trust_env=False)

    def wait_status(self, instance_id: str, wanted: str, within_s: float = 120) -> dict[str, Any]:
        """Poll an instance until it has the wanted status."""
        deadline = time.monotonic() + within_s
        with self.client() as client:
            while True:
                response = client.get(f"/api/v1/instances/{instance_id}")
                if wanted == "deleted" and response.status_code == 404:
                    return {}
                assert response.status_code == 200, response.text
                document = response.json()
                if document["status"] == wanted:
                    return document
                assert time.monotonic() < deadline, f"{document['status']}, not {wanted}: {document}"
                time.sleep(0.05)


def _engines() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if "wharfinger.fleet.runner_main" in " ".join(process.info["cmdline"] or ()):
            found.append(process)
    return found


def wharf(
    *arguments: str, environment: dict[str, str] | None = None, timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run the ``wharf`` command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "wharfinger.cli", *arguments],
        env=environment or dict(os.environ),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
