"""Well-known accelerators: memory and memory bandwidth from their makers' data sheets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from wharfinger.placement.types import MemoryKind

GIB: Final = 1024**3


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One product. For unified memory the size is the machine's RAM."""

    name: str
    memory_gib: int
    bandwidth_gb_per_s: float
    compute: str = "cuda"
    memory_kind: MemoryKind = MemoryKind.DISCRETE
    patterns: tuple[str, ...] = ()
    """Lower-case letters and digits by which drivers' device names are recognised, most specific first."""

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Memory bandwidth in bytes per second."""
        return self.bandwidth_gb_per_s * 1e9


def _apple(name: str, memory_gib: int, bandwidth: float) -> Accelerator:
    return Accelerator(name, memory_gib, bandwidth, "metal", MemoryKind.APPLE, (f"apple{name.lower()}",))


ACCELERATORS: Final = (
    Accelerator("B200", 180, 8000, patterns=("b200",)),
    Accelerator("H200", 141, 4800, patterns=("h200",)),
    Accelerator("H100-PCIe", 80, 2000, patterns=("h100pcie",)),
    Accelerator("H100", 80, 3350, patterns=("h100",)),
    Accelerator("A100-40GB", 40, 1555, patterns=("a100pcie40gb", "a100sxm440gb", "a10040gb")),
    Accelerator("A100", 80, 2039, patterns=("a100",)),
    Accelerator("A10G", 24, 600, patterns=("a10g",)),
    Accelerator("A10", 24, 600, patterns=("nvidiaa10",)),
    Accelerator("L40S", 48, 864, patterns=("l40s",)),
    Accelerator("L40", 48, 864, patterns=("l40",)),
    Accelerator("L4", 24, 300, patterns=("nvidial4",)),
    Accelerator("T4", 16, 320, patterns=("teslat4", "nvidiat4")),
    Accelerator("V100", 32, 900, patterns=("v100",)),
    Accelerator("RTXPRO6000", 96, 1792, patterns=("rtxpro6000",)),
    Accelerator("RTX6000Ada", 48, 960, patterns=("rtx6000ada",)),
    Accelerator("RTXA6000", 48, 768, patterns=("rtxa6000",)),
    Accelerator("RTX5090", 32, 1792, patterns=("rtx5090",)),
    Accelerator("RTX5080", 16, 960, patterns=("rtx5080",)),
    Accelerator("RTX4090", 24, 1008, patterns=("rtx4090",)),
    Accelerator("RTX4080", 16, 717, patterns=("rtx4080",)),
    Accelerator("RTX3090", 24, 936, patterns=("rtx3090",)),
    Accelerator("RTX3060", 12, 360, patterns=("rtx3060",)),
    Accelerator("MI325X", 256, 6000, "rocm", patterns=("mi325x",)),
    Accelerator("MI300X", 192, 5300, "rocm", patterns=("mi300x",)),
    Accelerator("MI210", 64, 1638, "rocm", patterns=("mi210",)),
    Accelerator("RX7900XTX", 24, 960, "rocm", patterns=("rx7900xtx",)),
    Accelerator("GB10", 128, 273, "cuda", MemoryKind.GB10, ("gb10",)),
    _apple("M1Ultra", 128, 800),
    _apple("M1Max", 64, 400),
    _apple("M1Pro", 32, 200),
    _apple("M1", 16, 68),
    _apple("M2Ultra", 192, 800),
    _apple("M2Max", 96, 400),
    _apple("M2Pro", 32, 200),
    _apple("M2", 24, 100),
    _apple("M3Ultra", 512, 819),
    _apple("M3Max", 128, 400),
    _apple("M3Pro", 36, 150),
    _apple("M3", 24, 100),
    _apple("M4Max", 128, 546),
    _apple("M4Pro", 64, 273),
    _apple("M4", 32, 120),
)


@lru_cache(maxsize=512)
def known_accelerator(device_name: str) -> Accelerator | None:
    """The product behind a driver's device name (``NVIDIA H100 80GB HBM3``); ``None`` when it is not known."""
    flat = "".join(char for char in device_name.lower() if char.isalnum())
    for product in ACCELERATORS:
        if any(pattern in flat for pattern in product.patterns):
            return product
    return None


def accelerator_named(name: str) -> Accelerator | None:
    """The product of that exact name, letter case aside."""
    return next((product for product in ACCELERATORS if product.name.lower() == name.lower()), None)
