"""What a node says about itself, on this real machine and from the files other machines would show."""

from __future__ import annotations

import platform
import shutil
import socket
from pathlib import Path

import psutil
import pytest

from wharfinger.engines.ports import choose_port
from wharfinger.fleet.agent import NodeReport
from wharfinger.fleet.devices import Nvidia, amd_devices, amd_memory_kind, nvidia_memory_kind
from wharfinger.fleet.host_memory import available_from_vm_stat, cgroup_limits
from wharfinger.fleet.local import LocalAgent
from wharfinger.fleet.telemetry import Telemetry

GIB = 2**30
VM_STAT = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               10000.
Pages active:                            200000.
Pages wired down:                         50000.
"Translation faults":                 123456789.
Anonymous pages:                         100000.
Pages stored in compressor:              300000.
Pages occupied by compressor:             25000.
"""


async def test_the_report_is_about_this_machine(agent: LocalAgent, tmp_path: Path) -> None:
    report = await agent.report()
    assert (report.node_id, report.name, report.role) == (agent.node_id, "testbed", "full")
    assert report.architecture == platform.machine()
    assert report.cpu_count == psutil.cpu_count()
    assert report.ram_total_bytes is not None
    assert report.ram_available_bytes is not None
    assert 0 < report.ram_available_bytes <= report.ram_total_bytes <= psutil.virtual_memory().total
    assert report.disk_total_bytes == shutil.disk_usage(tmp_path).total
    assert report.swap_total_bytes == psutil.swap_memory().total
    assert report.cpu_percent is not None
    assert 0 <= report.cpu_percent <= 100
    assert [e.engine for e in report.engines] == ["llama_cpp"]
    assert report.engines[0].backends[:2] == ("llama_cpp", "llama_cpp-cpu")
    assert report.engines[0].version
    assert NodeReport.model_validate_json(report.model_dump_json()) == report


async def test_what_was_not_measured_has_a_reason(agent: LocalAgent) -> None:
    report = await agent.report()
    settings = {"memory_cap_bytes"}  # set by an operator, never measured
    unmeasured = {name for name, value in report.model_dump(exclude=settings).items() if value is None}
    assert unmeasured <= set(report.missing)
    if not any(device.vendor == "nvidia" for device in report.devices):
        assert report.missing["devices.nvidia"].startswith("NVML is not available: ")


def test_listening_ports_and_model_files_are_seen(tmp_path: Path) -> None:
    telemetry = Telemetry("node_x", "x", "full", tmp_path)
    (tmp_path / "models" / "deep").mkdir(parents=True)
    model = tmp_path / "models" / "deep" / "a.gguf"
    model.write_bytes(b"GGUF")
    (tmp_path / "models" / "readme.txt").write_text("x")
    port = choose_port()
    with socket.create_server(("127.0.0.1", port)):
        report = telemetry.measure()
    assert port in report.used_ports
    assert report.artifact_files == (str(model),)


def test_macos_counts_file_cache_as_available() -> None:
    total = 16 * GIB
    assert available_from_vm_stat(VM_STAT, total) == total - (50_000 + 100_000 + 25_000) * 16384
    assert available_from_vm_stat(VM_STAT.replace("Anonymous pages", "Other pages"), total) is None
    assert available_from_vm_stat("", total) is None


def test_control_group_limits_are_read_outwards_and_file_cache_is_given_back(tmp_path: Path) -> None:
    inner = tmp_path / "machine" / "inner"
    inner.mkdir(parents=True)
    for group, limit, current, cache in (
        (inner, "max", 5, 0),
        (tmp_path / "machine", str(8 * GIB), 3 * GIB, GIB),
    ):
        (group / "memory.max").write_text(f"{limit}\n")
        (group / "memory.current").write_text(f"{current}\n")
        (group / "memory.stat").write_text(f"anon 1\ninactive_file {cache}\n")
    assert cgroup_limits(tmp_path, "/machine/inner", 0) == [(8 * GIB, 2 * GIB)]
    assert cgroup_limits(tmp_path, "/", 0) == []


@pytest.mark.parametrize(
    ("name", "capability", "total", "kind"),
    [
        ("NVIDIA H200", "9.0", 141 * GIB, "discrete"),
        ("NVIDIA GB10", "12.1", 119 * GIB, "gb10"),
        ("NVIDIA GB10", "12.1", None, "gb10"),
        ("NVIDIA GB10", "12.1", 60 * GIB, "discrete"),
        ("NVIDIA GB10", "12.0", 119 * GIB, "discrete"),
        ("NVIDIA GeForce RTX 5090", "12.1", 119 * GIB, "discrete"),
    ],
)
def test_nvidia_memory_kinds(name: str, capability: str, total: int | None, kind: str) -> None:
    assert nvidia_memory_kind(name, capability, total, 120 * GIB) == kind


@pytest.mark.parametrize(
    ("vram", "gtt", "kind"),
    [
        (24 * GIB, 32 * GIB, "discrete"),  # a card in a machine of 64 GiB: GTT is half of its RAM
        (GIB, 64 * GIB, "apu"),
        (96 * GIB, 64 * GIB, "discrete"),
        (None, 64 * GIB, "discrete"),
    ],
)
def test_amd_memory_kinds(vram: int | None, gtt: int | None, kind: str) -> None:
    assert amd_memory_kind(vram, gtt, 64 * GIB) == kind


def test_amd_devices_come_from_the_drivers_files(tmp_path: Path) -> None:
    card = tmp_path / "card1" / "device"
    (card / "hwmon" / "hwmon3").mkdir(parents=True)
    (tmp_path / "card1-DP-1").mkdir()
    (tmp_path / "card0" / "device").mkdir(parents=True)
    (tmp_path / "card0" / "device" / "vendor").write_text("0x10de\n")
    files = {
        "vendor": "0x1002",
        "device": "0x1586",
        "mem_info_vram_total": str(GIB),
        "mem_info_vram_used": str(GIB // 4),
        "mem_info_gtt_total": str(120 * GIB),
        "hwmon/hwmon3/temp1_input": "41000",
        "hwmon/hwmon3/power1_average": "12500000",
    }
    for name, text in files.items():
        (card / name).write_text(text + "\n")
    devices, missing = amd_devices(tmp_path, 2, 120 * GIB)
    assert len(devices) == 1
    device = devices[0]
    assert (device.index, device.name, device.vendor, device.compute) == (2, "AMD GPU 0x1586", "amd", "rocm")
    assert (device.memory_kind, device.total_bytes, device.used_bytes) == ("apu", GIB, GIB // 4)
    assert (device.gtt_total_bytes, device.temperature_celsius, device.power_watts) == (120 * GIB, 41.0, 12.5)
    assert device.utilisation_percent is None
    assert missing == {"devices.2.utilisation_percent": "the amdgpu driver does not show it"}


def test_a_missing_nvml_is_a_reason_and_not_a_crash() -> None:
    devices, missing = Nvidia().measure(64 * GIB)
    assert devices or missing["devices.nvidia"]
