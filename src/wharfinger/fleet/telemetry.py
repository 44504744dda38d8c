"""What this machine says about itself. A fact that was not measured is ``None``, with its reason in ``missing``."""

from __future__ import annotations

import os
import platform
import sys
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psutil

from wharfinger.engines.control_groups import usable_cpus
from wharfinger.engines.ports import PORTS
from wharfinger.fleet.agent import DeviceReport, NodeReport
from wharfinger.fleet.devices import Nvidia, amd_devices, apple_devices
from wharfinger.fleet.engine_search import EngineSearch
from wharfinger.fleet.host_memory import measure_ram
from wharfinger.fleet.runner_memory import ModelProcess, mapped_model_bytes

_DRM: Final = Path("/sys/class/drm")
_TCP_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENING: Final = "0A"
"""State of a listening socket in the kernel's TCP tables."""


class Telemetry:
    """Measures one node. :meth:`measure` blocks for a few milliseconds: call it in a thread."""

    def __init__(
        self, node_id: str, name: str, role: str, data_dir: Path, memory_cap_bytes: int | None = None
    ) -> None:
        self._node_id = node_id
        self._name = name
        self._role = role
        self._memory_cap_bytes = memory_cap_bytes
        self._data_dir = data_dir
        self._models = data_dir / "models"
        self._nvidia = Nvidia()
        self._cpu_model = _cpu_model()
        self._engines = EngineSearch()
        self._lock = threading.Lock()
        psutil.cpu_percent(None)  # begins the interval that the first report measures

    def find_engines(self) -> None:
        """Look for engines, which takes about 0.1 s, and keep the answer for later reports."""
        self._engines.find()

    def measure(self, living: Iterable[ModelProcess] = ()) -> NodeReport:
        """The node now, with the runners that live on it."""
        with self._lock:
            return self._measure(living)

    def _measure(self, living: Iterable[ModelProcess]) -> NodeReport:
        engines, engines_missing = self._engines.answer()
        missing = engines_missing.copy()
        mapped, unmapped_reason = mapped_model_bytes(living)
        if unmapped_reason is not None:
            missing["mapped_model_bytes"] = unmapped_reason
        ram_total, ram_available = measure_ram(mapped or 0)
        swap_total, swap_available = _swap(missing)
        disk_total, disk_free = _disk(self._data_dir, missing)
        cpu_percent = psutil.cpu_percent(None)
        if self._cpu_model is None:
            missing["cpu_model"] = "the system does not name it"
        return NodeReport(
            node_id=self._node_id,
            name=self._name,
            at=datetime.now(UTC),
            role=self._role,
            os=f"{platform.system()} {platform.release()}",
            architecture=platform.machine(),
            cpu_model=self._cpu_model,
            cpu_count=usable_cpus(),
            cpu_percent=cpu_percent,
            load_1m=os.getloadavg()[0],
            ram_total_bytes=ram_total,
            ram_available_bytes=ram_available,
            swap_total_bytes=swap_total,
            swap_available_bytes=swap_available,
            disk_total_bytes=disk_total,
            disk_free_bytes=disk_free,
            mapped_model_bytes=mapped,
            memory_cap_bytes=self._memory_cap_bytes,
            devices=self._devices(ram_total, missing),
            engines=engines,
            used_ports=_listening_ports(missing),
            artifact_files=_model_files(self._models, missing),
            missing=missing,
        )

    def _devices(self, ram_total_bytes: int, missing: dict[str, str]) -> tuple[DeviceReport, ...]:
        nvidia, nvidia_missing = self._nvidia.measure(ram_total_bytes)
        amd, amd_missing = amd_devices(
            _DRM, max((device.index for device in nvidia), default=-1) + 1, ram_total_bytes
        )
        apple, apple_missing = apple_devices(ram_total_bytes, self._cpu_model)
        missing |= nvidia_missing | amd_missing | apple_missing
        return (*nvidia, *amd, *apple)


def _swap(missing: dict[str, str]) -> tuple[int | None, int | None]:
    try:
        swap = psutil.swap_memory()
    except (OSError, RuntimeError) as error:
        missing["swap_total_bytes"] = missing["swap_available_bytes"] = f"not readable: {error}"
        return None, None
    return int(swap.total), int(swap.free)


def _disk(data_dir: Path, missing: dict[str, str]) -> tuple[int | None, int | None]:
    try:
        usage = psutil.disk_usage(str(data_dir))
    except OSError as error:
        missing["disk_total_bytes"] = missing["disk_free_bytes"] = f"not readable: {error.strerror}"
        return None, None
    return int(usage.total), int(usage.free)


def _cpu_model() -> str | None:
    if sys.platform != "linux":
        return platform.processor() or None
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return next(
                (line.partition(":")[2].strip() for line in file if line.startswith("model name")), None
            )
    except OSError:
        return None


def _listening_ports(missing: dict[str, str]) -> tuple[int, ...]:
    """Ports of our range that something on this node listens on."""
    ports: set[int] = set()
    for table in _TCP_TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            if table is _TCP_TABLES[0]:
                missing["used_ports"] = "only Linux shows the listening ports of all processes"
            continue
        ports.update(
            int(fields[1].rpartition(":")[2], 16)
            for line in lines
            if (fields := line.split())[3] == _LISTENING
        )
    return tuple(sorted(port for port in ports if port in PORTS))


def _model_files(directory: Path, missing: dict[str, str]) -> tuple[str, ...]:
    """GGUF files below the models folder, sorted; folders that come and go meanwhile are passed over."""

    def not_listed(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            missing["artifact_files"] = f"{error.filename} cannot be listed: {error.strerror}"

    return tuple(
        sorted(
            os.path.join(folder, name)
            for folder, _, names in os.walk(directory, onerror=not_listed)
            for name in names
            if name.endswith(".gguf")
        )
    )
