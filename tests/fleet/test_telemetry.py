"""What a node says about itself, on this real machine and from the files other machines would show."""

from __future__ import annotations

import errno
import os
import platform
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace

import psutil
import pynvml
import pytest

from wharfinger.engines.control_groups import group_directories
from wharfinger.engines.ports import choose_port
from wharfinger.fleet import host_memory
from wharfinger.fleet.agent import NodeReport
from wharfinger.fleet.devices import Nvidia, amd_devices, amd_memory_kind, nvidia_memory_kind
from wharfinger.fleet.host_memory import available_from_vm_stat, memory_limits
from wharfinger.fleet.local import LocalAgent
from wharfinger.fleet.telemetry import Telemetry

MIB = 2**20
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
    assert report.cpu_count is not None
    assert 1 <= report.cpu_count <= (os.cpu_count() or 1)
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


def test_a_models_folder_that_cannot_be_listed_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    telemetry = Telemetry("node_x", "x", "full", tmp_path)
    (tmp_path / "models" / "gone").mkdir(parents=True)
    (tmp_path / "models" / "stale").mkdir()
    (tmp_path / "models" / "a.gguf").touch()
    scandir = os.scandir

    def listed(path: str) -> object:
        number = {"gone": errno.ENOENT, "stale": errno.ESTALE}.get(Path(path).name)
        if number is not None:
            raise OSError(number, os.strerror(number), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", listed)
    report = telemetry.measure()
    assert report.artifact_files == (str(tmp_path / "models" / "a.gguf"),)
    assert report.missing["artifact_files"] == f"{tmp_path}/models/stale cannot be listed: Stale file handle"


def write_files(directory: Path, **files: object) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / name.replace("__", ".")).write_text(f"{content}\n")


def test_memory_limits_of_version_2_are_read_outwards_and_file_cache_is_given_back(tmp_path: Path) -> None:
    (tmp_path / "membership").write_text("0::/machine/inner\n")
    cache = "anon 1\ninactive_file "
    inner = tmp_path / "machine" / "inner"
    write_files(inner, memory__max="max", memory__current=5, memory__stat=f"{cache}0")
    outer = {"memory__max": 8 * GIB, "memory__current": 3 * GIB, "memory__stat": f"{cache}{GIB}"}
    write_files(tmp_path / "machine", **outer)
    groups = group_directories("memory", tmp_path, tmp_path / "membership")
    assert groups == (inner, tmp_path / "machine", tmp_path)
    assert memory_limits(groups, 0) == [(8 * GIB, 2 * GIB)]
    assert memory_limits(groups, GIB // 2) == [(8 * GIB, 2 * GIB + GIB // 2)]
    assert memory_limits(groups[2:], 0) == []


def test_memory_limits_of_version_1_are_read_beside_those_of_version_2(tmp_path: Path) -> None:
    (tmp_path / "membership").write_text("9:name=systemd:/\n4:memory:/docker/ab\n3:cpu,cpuacct:/\n0::/\n")
    cache = "inactive_file 1\ntotal_inactive_file "
    mount = tmp_path / "memory"  # in a container, where the host's path /docker/ab does not exist
    limited = {"memory__limit_in_bytes": 4 * GIB, "memory__usage_in_bytes": 2 * GIB}
    write_files(mount, **limited, memory__stat=f"{cache}{GIB}")
    groups = group_directories("memory", tmp_path, tmp_path / "membership")
    assert groups == (mount / "docker" / "ab", mount / "docker", mount, tmp_path)
    assert memory_limits(groups, 0) == [(4 * GIB, GIB)]
    write_files(mount, memory__limit_in_bytes=9223372036854771712)
    assert memory_limits(groups, 0) == []


def test_a_group_outside_of_the_mount_is_the_mount_and_no_groups_are_none(tmp_path: Path) -> None:
    (tmp_path / "membership").write_text("0::/../../elsewhere\n")
    assert group_directories("memory", tmp_path, tmp_path / "membership") == (tmp_path,)
    assert group_directories("memory", tmp_path, tmp_path / "none") == ()


def test_ram_is_never_more_than_the_control_groups_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path, memory__max=64 * MIB, memory__current=48 * MIB, memory__stat="inactive_file 0")
    monkeypatch.setattr(host_memory, "group_directories", lambda _: (tmp_path,))
    assert host_memory.measure_ram(0) == (64 * MIB, 16 * MIB)


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


def test_a_missing_nvml_is_a_reason_and_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_found() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", not_found)
    reason = "NVML is not available: NVML Shared Library Not Found"
    assert Nvidia().measure(64 * GIB) == ((), {"devices.nvidia": reason})


class FakeNvml:
    """NVML's answers for one device; ``memory`` is an error or (total, used)."""

    NVMLError = pynvml.NVMLError
    NVML_TEMPERATURE_GPU = pynvml.NVML_TEMPERATURE_GPU

    def __init__(self, name: str, capability: tuple[int, int], memory: int | tuple[int, int]) -> None:
        self.name, self.capability, self.memory = name, capability, memory

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, _: int) -> str:
        return self.name

    def nvmlDeviceGetCudaComputeCapability(self, _: int) -> tuple[int, int]:
        return self.capability

    def nvmlDeviceGetMemoryInfo(self, _: int) -> SimpleNamespace:
        if isinstance(self.memory, int):
            raise pynvml.NVMLError(self.memory)
        return SimpleNamespace(total=self.memory[0], used=self.memory[1])

    def nvmlDeviceGetUtilizationRates(self, _: int) -> SimpleNamespace:
        return SimpleNamespace(gpu=7)

    def nvmlDeviceGetTemperature(self, _: int, __: int) -> int:
        return 41

    def nvmlDeviceGetPowerUsage(self, _: int) -> int:
        return 11170


@pytest.mark.parametrize(
    ("nvml", "kind", "total", "used", "missing"),
    [
        (FakeNvml("NVIDIA L4", (8, 9), (24 * GIB, GIB)), "discrete", 24 * GIB, GIB, None),
        (FakeNvml("NVIDIA GB10", (12, 1), (120 * GIB, GIB)), "gb10", 120 * GIB, GIB, None),
        (
            FakeNvml("NVIDIA GB10", (12, 1), pynvml.NVML_ERROR_NOT_SUPPORTED),
            "gb10",
            122 * GIB,
            None,
            "unified memory: see ram_available_bytes",
        ),
        (FakeNvml("NVIDIA GB10", (12, 1), pynvml.NVML_ERROR_UNKNOWN), "gb10", None, None, "Unknown Error"),
        (
            FakeNvml("NVIDIA L4", (8, 9), pynvml.NVML_ERROR_NOT_SUPPORTED),
            "discrete",
            None,
            None,
            "Not Supported",
        ),
    ],
    ids=["card", "gb10", "gb10 without a count", "gb10 unread", "card unread"],
)
def test_nvidia_memory(
    nvml: FakeNvml, kind: str, total: int | None, used: int | None, missing: str | None
) -> None:
    nvidia = Nvidia()
    nvidia._nvml = nvml
    (device,), reasons = nvidia.measure(122 * GIB)
    assert (device.memory_kind, device.total_bytes, device.used_bytes) == (kind, total, used)
    assert reasons.get("devices.0.memory") == missing
    assert (device.compute_capability, device.power_watts) == (".".join(map(str, nvml.capability)), 11.17)


class LostNvml(FakeNvml):
    """Two devices, of which the first fell off the bus."""

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return index


def test_a_lost_gpu_hides_no_other() -> None:
    nvidia = Nvidia()
    nvidia._nvml = LostNvml("NVIDIA L4", (8, 9), (24 * GIB, GIB))
    (device,), reasons = nvidia.measure(122 * GIB)
    assert (device.index, device.name) == (1, "NVIDIA L4")
    assert reasons == {"devices.0": "NVML failed: GPU is lost"}
