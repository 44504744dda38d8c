"""Well-known accelerators: memory and memory bandwidth.

Where the numbers come from: the makers' data sheets (NVIDIA data center, RTX PRO and GeForce; AMD Instinct, Radeon and
Ryzen AI Max; Apple's technical specifications). For graphics cards, whose sheets often give the parts only, bandwidth
is bus width times the memory's data rate over 8; both are named beside the card.

Data center cards with GDDR memory have ECC on as delivered and keep its bits in that memory: 6.25 % less is available
(NVIDIA's CUDA C++ Best Practices Guide, on GDDR memory with ECC). HBM keeps them apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from wharfinger.placement.types import MemoryKind

GIB: Final = 1024**3
_WORDS: Final = re.compile(r"[a-z0-9]+")
_IN_LAPTOPS: Final = re.compile(r" (laptop|mobile|max q(?! workstation)) ")
"""Of workstation cards, a Max-Q has the memory of the others."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One product. For unified memory the size is the machine's RAM, the largest it is sold with."""

    name: str
    memory_gib: int
    bandwidth_gb_per_s: float
    compute: str = "cuda"
    memory_kind: MemoryKind = MemoryKind.DISCRETE
    ecc_in_memory: bool = False
    """Whether a sixteenth of its memory holds ECC bits, as delivered."""
    drivers: tuple[str, ...] = ()
    """Words, in a row, by which drivers' device names are recognised; by default the name itself."""

    @property
    def usable_bytes(self) -> int:
        """What a driver shows of the memory, at most."""
        return self.memory_gib * GIB * 15 // 16 if self.ecc_in_memory else self.memory_gib * GIB

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Memory bandwidth in bytes per second."""
        return self.bandwidth_gb_per_s * 1e9


def _nvidia(name: str, memory_gib: int, bandwidth: float, *drivers: str) -> Accelerator:
    return Accelerator(name, memory_gib, bandwidth, drivers=drivers)


def _gddr_ecc(name: str, memory_gib: int, bandwidth: float) -> Accelerator:
    return Accelerator(name, memory_gib, bandwidth, ecc_in_memory=True)


def _amd(name: str, memory_gib: int, bandwidth: float, *drivers: str) -> Accelerator:
    return Accelerator(name, memory_gib, bandwidth, "rocm", drivers=drivers)


def _apple(chip: str, memory_gib: int, bandwidth: float) -> Accelerator:
    name = chip.replace(" ", "")
    drivers = (f"apple {chip.lower()}",)
    return Accelerator(name, memory_gib, bandwidth, "metal", MemoryKind.APPLE, drivers=drivers)


ACCELERATORS: Final = (
    # NVIDIA data center: each card's data sheet gives both numbers. B200 and B300 as in HGX and DGX.
    _nvidia("B300", 288, 8000),
    _nvidia("B200", 180, 8000),
    _nvidia("GH200", 96, 4000),
    _nvidia("H200", 141, 4800),
    _nvidia("H100-PCIe", 80, 2000, "h100 pcie"),
    _nvidia("H100-NVL", 94, 3900, "h100 nvl"),
    _nvidia("H100", 80, 3350),
    _nvidia("H20", 96, 4000),
    _nvidia("A100-40GB", 40, 1555, "a100 pcie 40gb", "a100 sxm4 40gb"),
    _nvidia("A100", 80, 2039),
    _gddr_ecc("A40", 48, 696),
    _nvidia("A30", 24, 933),
    _gddr_ecc("A10G", 24, 600),
    _gddr_ecc("A10", 24, 600),
    _gddr_ecc("L40S", 48, 864),
    _gddr_ecc("L40", 48, 864),
    _gddr_ecc("L4", 24, 300),
    _gddr_ecc("T4", 16, 320),
    _nvidia("V100", 32, 900),
    _nvidia("P100", 16, 732),
    _gddr_ecc("P40", 24, 346),
    # NVIDIA RTX PRO and RTX workstation cards: their data sheets give both numbers.
    _nvidia("RTXPRO6000", 96, 1792, "rtx pro 6000"),
    _nvidia("RTXPRO5000", 48, 1344, "rtx pro 5000"),
    _nvidia("RTXPRO4500", 32, 896, "rtx pro 4500"),
    _nvidia("RTX6000Ada", 48, 960, "rtx 6000 ada"),
    _nvidia("RTX5000Ada", 32, 576, "rtx 5000 ada"),
    _nvidia("RTX4000Ada", 20, 360, "rtx 4000 ada"),
    _nvidia("RTXA6000", 48, 768, "rtx a6000"),
    _nvidia("RTXA5000", 24, 768, "rtx a5000"),
    _nvidia("RTXA4000", 16, 448, "rtx a4000"),
    # NVIDIA GeForce: bus width x data rate, from the product pages.
    _nvidia("RTX5090", 32, 1792, "rtx 5090"),  # 512 bit x 28 Gb/s
    _nvidia("RTX5080", 16, 960, "rtx 5080"),  # 256 bit x 30 Gb/s
    _nvidia("RTX5070Ti", 16, 896, "rtx 5070 ti"),  # 256 bit x 28 Gb/s
    _nvidia("RTX5070", 12, 672, "rtx 5070"),  # 192 bit x 28 Gb/s
    _nvidia("RTX5060Ti", 16, 448, "rtx 5060 ti"),  # 128 bit x 28 Gb/s; also sold with 8 GB
    _nvidia("RTX5060", 8, 448, "rtx 5060"),  # 128 bit x 28 Gb/s
    _nvidia("RTX4090", 24, 1008, "rtx 4090"),  # 384 bit x 21 Gb/s
    _nvidia("RTX4080Super", 16, 736, "rtx 4080 super"),  # 256 bit x 23 Gb/s
    _nvidia("RTX4080", 16, 717, "rtx 4080"),  # 256 bit x 22.4 Gb/s
    _nvidia("RTX4070TiSuper", 16, 672, "rtx 4070 ti super"),  # 256 bit x 21 Gb/s
    _nvidia("RTX4070Ti", 12, 504, "rtx 4070 ti"),  # 192 bit x 21 Gb/s
    _nvidia("RTX4070Super", 12, 504, "rtx 4070 super"),  # 192 bit x 21 Gb/s
    _nvidia("RTX4070", 12, 504, "rtx 4070"),  # 192 bit x 21 Gb/s
    _nvidia("RTX4060Ti", 16, 288, "rtx 4060 ti"),  # 128 bit x 18 Gb/s; also sold with 8 GB
    _nvidia("RTX4060", 8, 272, "rtx 4060"),  # 128 bit x 17 Gb/s
    _nvidia("RTX3090Ti", 24, 1008, "rtx 3090 ti"),  # 384 bit x 21 Gb/s
    _nvidia("RTX3090", 24, 936, "rtx 3090"),  # 384 bit x 19.5 Gb/s
    _nvidia("RTX3080Ti", 12, 912, "rtx 3080 ti"),  # 384 bit x 19 Gb/s
    _nvidia("RTX3080", 10, 760, "rtx 3080"),  # 320 bit x 19 Gb/s
    _nvidia("RTX3070Ti", 8, 608, "rtx 3070 ti"),  # 256 bit x 19 Gb/s
    _nvidia("RTX3070", 8, 448, "rtx 3070"),  # 256 bit x 14 Gb/s
    _nvidia("RTX3060Ti", 8, 448, "rtx 3060 ti"),  # 256 bit x 14 Gb/s
    _nvidia("RTX3060", 12, 360, "rtx 3060"),  # 192 bit x 15 Gb/s
    _nvidia("RTX2080Ti", 11, 616, "rtx 2080 ti"),  # 352 bit x 14 Gb/s
    # AMD Instinct: each card's data sheet gives both numbers.
    _amd("MI355X", 288, 8000),
    _amd("MI350X", 288, 8000),
    _amd("MI325X", 256, 6000),
    _amd("MI300X", 192, 5300),
    _amd("MI250X", 64, 1638),  # one of the card's two dies, which drivers show as a device each
    _amd("MI250", 64, 1638),  # likewise
    _amd("MI210", 64, 1638),
    _amd("MI100", 32, 1229),
    # AMD Radeon and Radeon PRO: bus width x data rate, from the product pages.
    _amd("RadeonAIPROR9700", 32, 640, "radeon ai pro r9700"),  # 256 bit x 20 Gb/s
    _amd("W7900", 48, 864, "pro w7900"),  # 384 bit x 18 Gb/s
    _amd("W7800", 32, 576, "pro w7800"),  # 256 bit x 18 Gb/s
    _amd("RX9070XT", 16, 640, "rx 9070 xt"),  # 256 bit x 20 Gb/s
    _amd("RX9070", 16, 640, "rx 9070"),  # 256 bit x 20 Gb/s
    _amd("RX9060XT", 16, 320, "rx 9060 xt"),  # 128 bit x 20 Gb/s; also sold with 8 GB
    _amd("RX7900XTX", 24, 960, "rx 7900 xtx"),  # 384 bit x 20 Gb/s
    _amd("RX7900XT", 20, 800, "rx 7900 xt"),  # 320 bit x 20 Gb/s
    _amd("RX7900GRE", 16, 576, "rx 7900 gre"),  # 256 bit x 18 Gb/s
    _amd("RX7800XT", 16, 624, "rx 7800 xt"),  # 256 bit x 19.5 Gb/s
    _amd("RX6800XT", 16, 512, "rx 6800 xt"),  # 256 bit x 16 Gb/s
    # Unified memory. Ryzen AI Max (385, 390, 395): 256 bit x 8 Gb/s; its driver often gives the PCI id for a name.
    # GB10: the DGX Spark's data sheet.
    Accelerator(
        "RyzenAIMax", 128, 256, "rocm", MemoryKind.APU, drivers=("radeon 8060s", "radeon 8050s", "0x1586")
    ),
    Accelerator("GB10", 128, 273, "cuda", MemoryKind.GB10, drivers=("gb10",)),
    # Apple: the technical specifications of the machines, each chip's fullest version.
    _apple("M1 Ultra", 128, 800),
    _apple("M1 Max", 64, 400),
    _apple("M1 Pro", 32, 200),
    _apple("M1", 16, 68),
    _apple("M2 Ultra", 192, 800),
    _apple("M2 Max", 96, 400),
    _apple("M2 Pro", 32, 200),
    _apple("M2", 24, 100),
    _apple("M3 Ultra", 512, 819),
    _apple("M3 Max", 128, 400),
    _apple("M3 Pro", 36, 150),
    _apple("M3", 24, 100),
    _apple("M4 Max", 128, 546),
    _apple("M4 Pro", 64, 273),
    _apple("M4", 32, 120),
    _apple("M5", 32, 153),
)
"""Where one name is the beginning of another, the longer stands first."""


@lru_cache(maxsize=512)
def known_accelerator(device_name: str) -> Accelerator | None:
    """The product behind a driver's device name (``NVIDIA H100 80GB HBM3``); ``None`` when it is not known.

    Laptop versions carry a desktop card's name with less memory and bandwidth, and are not known.
    """
    words = f" {' '.join(_WORDS.findall(device_name.lower()))} "
    if _IN_LAPTOPS.search(words):
        return None
    for product in ACCELERATORS:
        if any(f" {driver} " in words for driver in product.drivers or (product.name.lower(),)):
            return product
    return None


def accelerator_named(name: str) -> Accelerator | None:
    """The product of that name: letter case, spaces and dashes aside (``RTX 4090`` is ``RTX4090``)."""
    wanted = _flat(name)
    return next((product for product in ACCELERATORS if _flat(product.name) == wanted), None)


_COMPUTE_BY_NAME: Final = (
    ("cuda", re.compile(r"(nvidia|geforce|tesla|quadro|rtx|gtx)")),
    ("rocm", re.compile(r"(amd|radeon|instinct|rx\d|mi\d)")),
    ("metal", re.compile(r"(apple)?m[1-9](pro|max|ultra)?$")),  # M40 and M60 are Teslas
    ("vulkan", re.compile(r"(intel|arc)")),
)


def compute_of_name(name: str) -> str | None:
    """What a product that is not in the table computes with, by the maker its name begins with."""
    flat = _flat(name)
    return next((compute for compute, pattern in _COMPUTE_BY_NAME if pattern.match(flat)), None)


def _flat(name: str) -> str:
    return "".join(_WORDS.findall(name.lower()))
