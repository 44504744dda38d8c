"""What a description of machines may say: sizes, engines, cards outside the table, memory that is shared."""

from __future__ import annotations

from typing import Any

import pytest

from support.fleets import GIB, ask, card
from wharfinger.placement.fleet_fields import FleetError, speed_of
from wharfinger.placement.hardware import ACCELERATORS, accelerator_named, known_accelerator
from wharfinger.placement.hypothetical import fleet_from_mapping, parse_what_if
from wharfinger.placement.memory.pools import usable
from wharfinger.placement.planner import plan
from wharfinger.placement.types import MemoryKind, NodeFacts
from wharfinger.sizes import size_of

MIB = 1024**2


def node(**fields: Any) -> NodeFacts:
    """The one node of a described fleet."""
    return fleet_from_mapping({"nodes": [{"name": "a", "ram": "64GiB"} | fields]}).nodes[0]


def usable_gib(described: NodeFacts, backend: str) -> float:
    (pool,) = usable(described, backend, [])
    assert pool.usable_bytes is not None
    return pool.usable_bytes / GIB


def refusal(**fields: Any) -> str:
    with pytest.raises(FleetError) as raised:
        node(**fields)
    return str(raised.value)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("64GiB", 64 * GIB),
        ("64 GB", 64 * GIB),
        ("64gb", 64 * GIB),
        ("1.5T", 1536 * GIB),
        ("512MiB", 512 * MIB),
        ("0GiB", 0),
        ("64Gb", None),
        ("64Gib", None),
        ("64", 64),
        ("64KiB", 64 * 1024),
        ("64k", 64 * 1024),
        ("999999999TB", 999_999_999 * 1024 * GIB),
        ("64.5", None),
        ("-1", None),
        ("64 parsecs", None),
        ("9" * 400 + "GB", None),
        ("1." + "9" * 400 + "GB", None),
        ("9" * 19, None),
        ("\u0666\u0664GB", None),
    ],
)
def test_sizes_are_bytes_never_bits(text: str, size_bytes: int | None) -> None:
    assert size_of(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "speed"),
    [
        ("10Gbps", 1.25e9),
        ("10Gb/s", 1.25e9),
        ("400GB/s", 4e11),
        ("8TB/s", 8e12),
        ("10gbps", None),
        ("10GBps", None),
        ("9" * 400 + "Gbps", None),
        ("\u0661\u0660Gbps", None),
    ],
)
def test_speeds_tell_bits_from_bytes(text: str, speed: float | None) -> None:
    assert speed_of(text) == speed


@pytest.mark.parametrize("value", ["0GiB", "0MB", "64Gb", "", 64, True, 0, "64", "9" * 400 + "TB", 10**400])
@pytest.mark.parametrize("field", ["ram", "memory_cap"])
def test_no_memory_and_bits_are_refused(field: str, value: object) -> None:
    """As are so few bytes that GiB must have been meant."""
    assert f"nodes[0].{field} is {value!r}; accepted: a size" in refusal(**{field: value})


@pytest.mark.parametrize("value", [16 * GIB, str(16 * GIB), "16384M"])
def test_a_whole_number_is_bytes(value: object) -> None:
    assert node(ram=value).ram_total_bytes == 16 * GIB


def test_no_memory_of_a_card_is_refused() -> None:
    words = refusal(gpus=[{"model": "RTX4090", "memory": "0GiB"}])
    assert words == "nodes[0].gpus[0].memory is '0GiB'; accepted: a size above 1 MiB, such as 64GiB"
    assert "a speed" in refusal(ram_bandwidth="0GB/s")


def test_nothing_free_and_nothing_used_are_what_they_say() -> None:
    full = node(ram_available="0GiB", gpus=[{"model": "RTX4090", "used": "0GiB"}])
    assert (full.ram_available_bytes, full.devices[0].used_bytes) == (0, 0)


def test_no_engines_is_none() -> None:
    assert node(backends=[]).backends == frozenset()
    assert node().backends == {"llama_cpp-cpu", "llama_server-cpu"}


@pytest.mark.parametrize(
    ("tag", "closest"),
    [("llama_cp-cuda", "llama_cpp-cuda"), ("llama_cpp-cudda", "llama_cpp-cuda"), ("VLLM", "vllm")],
)
def test_an_engine_that_is_none_is_refused(tag: str, closest: str) -> None:
    words = refusal(backends=["llama_cpp-cpu", tag])
    assert words.startswith("nodes[0].backends is ['llama_cpp-cpu', ")
    assert f"for {tag!r} maybe {closest}" in words


@pytest.mark.parametrize("tag", ["mlx", "mlx-metal", "vllm", "sglang-cuda", "llama_server-vulkan"])
def test_engines_with_and_without_their_compute(tag: str) -> None:
    assert node(backends=[tag]).backends == {tag}


def test_what_others_hold_of_unified_memory_is_not_usable() -> None:
    """It was counted as free: 48 GiB of a machine of which 60 of 64 GiB are held."""
    assert usable_gib(node(gpus=[{"model": "M4Max"}]), "mlx-metal") == 48
    held = node(gpus=[{"model": "M4Max", "used": "20GiB"}])
    assert held.ram_available_bytes == 64 * GIB * 90 // 100 - 20 * GIB
    assert usable_gib(node(gpus=[{"model": "M4Max", "used": "60GiB"}]), "mlx-metal") == 0
    spark = node(ram="128GiB", gpus=[{"model": "GB10", "used": "100GiB"}])
    assert usable_gib(spark, "llama_cpp-cuda") == 0
    words = refusal(ram_available="30GiB", gpus=[{"model": "M4Max", "used": "20GiB"}])
    assert words == (
        "nodes[0].ram_available is '30GiB'; accepted: this, or gpus[].used: CPU and GPU share one memory"
    )


def test_the_memory_of_a_unified_machine_is_its_ram() -> None:
    assert node(gpus=[{"model": "M4Max", "memory": "64GiB"}]).devices[0].total_bytes == 64 * GIB
    words = refusal(gpus=[{"model": "M4Max", "memory": "32GiB"}])
    assert words.endswith("accepted: none, because M4Max has the machine's memory, which is ram")


def test_a_ryzen_ai_max_maps_ram_as_it_needs() -> None:
    """The APU rule: 0.9 of the carve-out, and of the free RAM all but 16 GiB."""
    (imagined,) = parse_what_if("+1xRyzenAIMax-128GB")
    described = node(ram="128GiB", gpus=[{"model": "Ryzen AI Max"}])
    for machine in (imagined, described):
        (device,) = machine.devices
        assert (device.memory_kind, device.compute) == (MemoryKind.APU, "rocm")
        assert (device.total_bytes, device.gtt_total_bytes) == (512 * MIB, 128 * GIB - 512 * MIB)
        assert machine.ram_total_bytes == 128 * GIB - 512 * MIB
        assert usable_gib(machine, "llama_cpp-rocm") == pytest.approx(0.45 + 127.5 * 0.9 - 16, abs=1e-6)
    assert device.bandwidth_bytes_per_s == 256e9


def test_a_large_carve_out_is_a_card_of_its_own_as_an_agent_reports_it() -> None:
    machine = node(ram="128GiB", gpus=[{"model": "RyzenAIMax", "memory": "96GiB"}])
    assert machine.ram_total_bytes == 32 * GIB
    (device,) = machine.devices
    assert (device.memory_kind, device.total_bytes) == (MemoryKind.DISCRETE, 96 * GIB)
    assert "the part of ram that is kept" in refusal(gpus=[{"model": "RyzenAIMax", "memory": "64GiB"}])
    words = refusal(gpus=[{"model": "RyzenAIMax", "used": "20GiB"}])
    assert words.endswith(
        "at most the device's memory (0.5 GiB); give ram_available for what is held beyond it"
    )


@pytest.mark.parametrize(
    ("gpu", "compute", "memory_gib", "bandwidth"),
    [
        ({"model": "RTX9999", "memory": "40GiB"}, "cuda", 40, None),
        ({"model": "Radeon RX 580", "memory": "8GiB"}, "rocm", 8, None),
        ({"model": "Radeon RX 580", "memory": "8GiB", "compute": "vulkan"}, "vulkan", 8, None),
        ({"model": "Arc B580", "memory": "12GiB", "bandwidth": "456GB/s"}, "vulkan", 12, 456e9),
        ({"model": "Voodoo2", "memory": "12GiB", "compute": "cuda"}, "cuda", 12, None),
        ({"model": "RTX4090", "bandwidth": "900GB/s"}, "cuda", 24, 900e9),
        ({"model": "NVIDIA GeForce RTX 4090"}, "cuda", 24, 1008e9),
        ({"model": "rtx 4070 ti super"}, "cuda", 16, 672e9),
        ({"model": "A100", "memory": "40GB"}, "cuda", 40, 1555e9),
        ({"model": "NVIDIA A100", "memory": "40GiB"}, "cuda", 40, 1555e9),
        ({"model": "Tesla M40", "memory": "24GiB"}, "cuda", 24, None),
        ({"model": "RTX 4090 Mobile", "memory": "16GiB"}, "cuda", 16, None),
        ({"model": "RTX 4090 Max-Q", "memory": "16GiB"}, "cuda", 16, None),
        ({"model": "H100 NVL"}, "cuda", 94, 3900e9),
    ],
)
def test_cards_in_and_outside_the_table(
    gpu: dict[str, str], compute: str, memory_gib: int, bandwidth: float | None
) -> None:
    machine = node(gpus=[gpu])
    (device,) = machine.devices
    assert (device.compute, device.total_bytes) == (compute, memory_gib * GIB)
    assert device.memory_kind is MemoryKind.DISCRETE
    assert device.bandwidth_bytes_per_s == bandwidth
    model = card(layer_mib=100, backends=("llama_cpp",))
    best = plan(fleet_from_mapping({"nodes": [{"name": "a", "ram": "64GiB", "gpus": [gpu]}]}), model, ask())
    assert best.best is not None
    assert best.best.ranks[0].backend == f"llama_cpp-{compute}"


def test_an_apple_chip_outside_the_table_has_the_machines_memory() -> None:
    (device,) = node(gpus=[{"model": "M7 Max"}]).devices
    assert (device.memory_kind, device.total_bytes) == (MemoryKind.APPLE, 64 * GIB)
    (imagined,) = parse_what_if("+1xM7Max-256GB")
    assert (imagined.ram_total_bytes, imagined.devices[0].memory_kind) == (256 * GIB, MemoryKind.APPLE)


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        ({"model": "RTX9999"}, "memory is None; accepted: its size, such as 16GiB: 'RTX9999' is not a known"),
        (
            {"model": "Voodoo2", "memory": "12GiB"},
            "to describe it, give compute (cuda, rocm, metal, vulkan) and memory",
        ),
        ({"model": "H1OO", "memory": "80GiB"}, "'H1OO' is not a known accelerator; alike: H100"),
        (
            {"model": "RTX4090", "compute": "rocm"},
            "compute is 'rocm'; accepted: cuda, which RTX4090 computes with",
        ),
        ({"model": "RTX4090", "compute": "tpu"}, "compute is 'tpu'; accepted: cuda, rocm, metal, vulkan"),
        ({"model": "RTX9999", "memory": "8GiB", "bandwidth": "0GB/s"}, "accepted: a speed"),
    ],
)
def test_what_a_card_outside_the_table_needs(gpu: dict[str, str], words: str) -> None:
    assert words in refusal(gpus=[gpu])


@pytest.mark.parametrize(
    ("spec", "compute", "memory_gib", "bandwidth"),
    [
        ("+1xRTX4070-12GB", "cuda", 12, 504e9),
        ("+1xRTX9999-40GB", "cuda", 40, None),
        ("+1xRX580-8GB", "rocm", 8, None),
        ("+1xA100-40GB", "cuda", 40, 1555e9),
        ("+1xA100-80GB", "cuda", 80, 2039e9),
        ("+1xA100-40GiB", "cuda", 40, 1555e9),
        ("+1xA100-40G", "cuda", 40, 1555e9),
        ("+1xA100-40960MB", "cuda", 40, 1555e9),
        ("+1xH100-NVL", "cuda", 94, 3900e9),
        ("+1xH100-NVL-94GB", "cuda", 94, 3900e9),
        ("+1xTeslaM40-24GB", "cuda", 24, None),
    ],
)
def test_what_if_of_any_card(spec: str, compute: str, memory_gib: int, bandwidth: float | None) -> None:
    (machine,) = parse_what_if(spec)
    (device,) = machine.devices
    assert (device.compute, device.total_bytes) == (compute, memory_gib * GIB)
    assert device.bandwidth_bytes_per_s == bandwidth


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("+1xRTX9999", "name its memory to use it, e.g. +1xRTX9999-16GB"),
        ("+1xVoodoo2-12GB", "Any other is described in a fleet.yaml, with its memory and compute."),
        ("+2xH1OO-80GB", "alike: H100"),
        ("+1xM40-24GB", "'M40' is not a known accelerator"),
        ("+1xM60-16GB", "'M60' is not a known accelerator"),
        ("+1xH200-0GB", "the size is 0GB; accepted is one above 1 MiB"),
        ("+1xH100-80", "the size is 80; accepted is one above 1 MiB, such as 80GB or 80GiB"),
        ("+1xH100-80Gb", "the size is 80Gb; accepted is one in bytes, not bits, such as 80GB or 80GiB"),
        ("+1xH100-8O GB", "expected +COUNTxNAME or +COUNTxNAME-SIZE"),
        ("+1xH100-" + "9" * 400 + "GB", "accepted is one in bytes"),
        ("+" + "9" * 5000 + "xH100", "expected +COUNTxNAME"),
        ("+\u0661xH100", "expected +COUNTxNAME"),
    ],
)
def test_what_if_of_a_card_that_cannot_be_told(spec: str, words: str) -> None:
    with pytest.raises(FleetError) as raised:
        parse_what_if(spec)
    assert words in str(raised.value)


@pytest.mark.parametrize("name", [product.name for product in ACCELERATORS])
def test_every_product_is_found_by_its_name(name: str) -> None:
    product = accelerator_named(name)
    assert product is not None
    assert product.name == name


@pytest.mark.parametrize(
    ("device_name", "product"),
    [
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "RTX4070TiSuper"),
        ("NVIDIA GeForce RTX 4070 SUPER", "RTX4070Super"),
        ("NVIDIA GeForce RTX 4070", "RTX4070"),
        ("NVIDIA GeForce RTX 5060 Ti", "RTX5060Ti"),
        ("NVIDIA RTX A6000", "RTXA6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTXPRO6000"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("Tesla T4", "T4"),
        ("Tesla P40", "P40"),
        ("AMD Radeon RX 7900 XTX", "RX7900XTX"),
        ("AMD Radeon RX 7900 XT", "RX7900XT"),
        ("AMD GPU 0x1586", "RyzenAIMax"),
        # Each of these carries another product's name within its own, and was taken for it.
        ("NVIDIA RTX A1000", None),
        ("NVIDIA T400 4GB", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 2080 Ti Mobile", None),
        ("NVIDIA GeForce RTX 3080 Ti with Max-Q Design", None),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTXPRO6000"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA H200 NVL", "H200"),
    ],
)
def test_drivers_names_are_recognised_as_whole_words(device_name: str, product: str | None) -> None:
    known = known_accelerator(device_name)
    assert (known.name if known else None) == product


@pytest.mark.parametrize(
    ("name", "told_mib", "shown_mib"),
    [("T4", 15360, 15079), ("A10", 23040, 23028), ("L4", 23040, 23034), ("A40", 46080, 46068),
     ("L40S", 46080, 46068), ("P40", 23040, 22919)],
)  # fmt: skip
def test_cards_that_keep_ecc_bits_in_their_memory_have_less(name: str, told_mib: int, shown_mib: int) -> None:
    """A sixteenth less than is sold, however the sheet's size is written; ``nvidia-smi`` shows a little less still."""
    sold = accelerator_named(name)
    assert sold is not None
    sheet = f"{sold.memory_gib}GB"
    machines = [
        *parse_what_if(f"+1x{name}"),
        *parse_what_if(f"+1x{name}-{sheet}"),
        node(gpus=[{"model": name}]),
        node(gpus=[{"model": f"NVIDIA {name}", "memory": sheet}]),
    ]
    assert [machine.devices[0].total_bytes for machine in machines] == [told_mib * MIB] * 4
    assert 0 <= told_mib - shown_mib < 300
    measured = node(gpus=[{"model": name, "memory": f"{shown_mib}MiB"}])
    assert measured.devices[0].total_bytes == shown_mib * MIB
