"""Accelerators of this node: NVIDIA through NVML, AMD through the kernel's files, Apple by its unified memory."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from wharfinger.fleet.agent import DeviceReport

_NVML_RETRY_S: Final = 60.0
_GB10_SHARE: Final = (0.90, 1.10)
"""A GB10 reports its unified memory as VRAM: between these shares of the node's RAM."""
_NOT_SUPPORTED: Final = "Not Supported"
"""NVML's words for ``NVML_ERROR_NOT_SUPPORTED``."""
_AMD_VENDOR: Final = "0x1002"


def nvidia_memory_kind(
    name: str, compute_capability: str | None, total_bytes: int | None, ram_bytes: int
) -> str:
    """``gb10`` for NVIDIA's unified-memory GB10, ``discrete`` for every other card."""
    if not name.startswith("NVIDIA GB10") or compute_capability != "12.1":
        return "discrete"
    if total_bytes is not None and not _GB10_SHARE[0] <= total_bytes / ram_bytes <= _GB10_SHARE[1]:
        return "discrete"
    return "gb10"


def amd_memory_kind(vram_bytes: int | None, gtt_bytes: int | None, ram_bytes: int) -> str:
    """``apu`` when the GPU may map more system memory than it has VRAM, and all of it; else ``discrete``."""
    if vram_bytes is None or gtt_bytes is None:
        return "discrete"
    return "apu" if gtt_bytes > vram_bytes and gtt_bytes >= ram_bytes else "discrete"


class Nvidia:
    """NVML, opened once and kept open. Methods block in the driver and are called from one thread at a time."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._reason: str | None = None
        self._retry_at = 0.0

    def measure(self, ram_bytes: int) -> tuple[tuple[DeviceReport, ...], dict[str, str]]:
        """Every NVIDIA device, and for each thing not measured the reason."""
        if self._nvml is None and time.monotonic() >= self._retry_at:
            self._open()
        if self._nvml is None:
            return (), {"devices.nvidia": self._reason or "NVML was not opened"}
        nvml, missing = self._nvml, {}
        devices: list[DeviceReport] = []
        try:
            for index in range(int(nvml.nvmlDeviceGetCount())):
                try:
                    devices.append(self._device(index, ram_bytes, missing))
                except nvml.NVMLError as error:  # fell off the bus: the others go on
                    missing[f"devices.{index}"] = f"NVML failed: {error}"
        except nvml.NVMLError as error:
            missing["devices.nvidia"] = f"NVML failed: {error}"
        if missing and not devices:
            self._nvml = None  # a driver that was reloaded, perhaps: look afresh at the next report
        return tuple(devices), missing

    def _open(self) -> None:
        import pynvml

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self._reason = f"NVML is not available: {error}"
            self._retry_at = time.monotonic() + _NVML_RETRY_S
            return
        self._nvml = pynvml

    def _device(self, index: int, ram_bytes: int, missing: dict[str, str]) -> DeviceReport:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)

        def ask(fact: str, call: Callable[[], Any]) -> Any:
            try:
                return call()
            except nvml.NVMLError as error:
                missing[f"devices.{index}.{fact}"] = str(error)
                return None

        name = str(nvml.nvmlDeviceGetName(handle))
        memory = ask("memory", lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        capability = ask("compute_capability", lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
        rates = ask("utilisation_percent", lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        celsius = ask(
            "temperature_celsius", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
        )
        milliwatts = ask("power_watts", lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        total_bytes = None if memory is None else int(memory.total)
        version = None if capability is None else f"{capability[0]}.{capability[1]}"
        kind = nvidia_memory_kind(name, version, total_bytes, ram_bytes)
        if kind == "gb10" and missing.get(f"devices.{index}.memory") == _NOT_SUPPORTED:
            # Drivers keep no count of their own for memory that is the system's (seen with 580.126 and 580.173).
            total_bytes = ram_bytes
            missing[f"devices.{index}.memory"] = "unified memory: see ram_available_bytes"
        return DeviceReport(
            index=index,
            name=name,
            vendor="nvidia",
            compute="cuda",
            memory_kind=kind,
            total_bytes=total_bytes,
            used_bytes=None if memory is None else int(memory.used),
            compute_capability=version,
            utilisation_percent=None if rates is None else float(rates.gpu),
            temperature_celsius=None if celsius is None else float(celsius),
            power_watts=None if milliwatts is None else milliwatts / 1000,
        )


def amd_devices(
    drm: Path, first_index: int, ram_bytes: int
) -> tuple[tuple[DeviceReport, ...], dict[str, str]]:
    """AMD devices as the amdgpu driver shows them below ``drm`` (``/sys/class/drm``)."""
    found: list[DeviceReport] = []
    missing: dict[str, str] = {}
    for card in sorted(drm.glob("card[0-9]*")):
        device = card / "device"
        if "-" in card.name or _text(device / "vendor") != _AMD_VENDOR:
            continue
        index = first_index + len(found)
        total, gtt = _number(device / "mem_info_vram_total"), _number(device / "mem_info_gtt_total")
        used, busy = _number(device / "mem_info_vram_used"), _number(device / "gpu_busy_percent")
        facts = {
            "total_bytes": total,
            "used_bytes": used,
            "gtt_total_bytes": gtt,
            "utilisation_percent": busy,
        }
        for fact, value in facts.items():
            if value is None:
                missing[f"devices.{index}.{fact}"] = "the amdgpu driver does not show it"
        millidegrees = _first_number(device, "hwmon/hwmon*/temp1_input")
        microwatts = _first_number(device, "hwmon/hwmon*/power1_average")
        found.append(
            DeviceReport(
                index=index,
                name=_text(device / "product_name")
                or f"AMD GPU {_text(device / 'device') or 'of unknown model'}",
                vendor="amd",
                compute="rocm",
                memory_kind=amd_memory_kind(total, gtt, ram_bytes),
                total_bytes=total,
                used_bytes=used,
                gtt_total_bytes=gtt,
                utilisation_percent=None if busy is None else float(busy),
                temperature_celsius=None if millidegrees is None else millidegrees / 1000,
                power_watts=None if microwatts is None else microwatts / 1_000_000,
            )
        )
    return tuple(found), missing


def apple_devices(ram_bytes: int, chip: str | None) -> tuple[tuple[DeviceReport, ...], dict[str, str]]:
    """The GPU of an Apple chip: it shares the node's RAM, so its use is not measured apart."""
    if sys.platform != "darwin" or platform.machine() != "arm64":
        return (), {}
    device = DeviceReport(
        index=0,
        name=chip or "Apple GPU",
        vendor="apple",
        compute="metal",
        memory_kind="apple",
        total_bytes=ram_bytes,
    )
    return (device,), {"devices.0.used_bytes": "unified memory: see ram_available_bytes"}


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdigit() else None


def _first_number(device: Path, pattern: str) -> int | None:
    return next(
        (value for path in sorted(device.glob(pattern)) if (value := _number(path)) is not None), None
    )
