"""Failed loads and crashes: the code, the sentence, the exit status and the log tail that a person needs."""

from __future__ import annotations

import os
import resource
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from wharfinger.fleet.agent import RunnerReport, RunnerSpec, RunnerState
from wharfinger.fleet.local import LocalAgent
from wharfinger.fleet.runner_main import EXIT_FAILED

GIB = 2**30
MakeSpec = Callable[..., RunnerSpec]


async def failed(agent: LocalAgent, spec: RunnerSpec, within_s: float = 60.0) -> RunnerReport:
    report = await agent.start_runner(spec)
    deadline = time.monotonic() + within_s
    while not report.state.ended:
        assert time.monotonic() < deadline, report
        report = await agent.wait_runner(spec.runner_id, report, 1.0)
    assert report.state is RunnerState.FAILED
    assert report.endpoint is None
    return report


@pytest.mark.parametrize(
    ("content", "code", "text"),
    [
        (None, "file_missing", "does not exist on this node; put it back or add the model again"),
        (b"", "load_failed", "is empty; get the file again"),
        (b"PK\x03\x04 this is an archive", "load_failed", "is no GGUF file: it starts with b'PK"),
        (b"GGUF\x03\x00", "load_failed", "is truncated: 6 bytes are shorter than a GGUF header"),
        (
            b"GGUF\x01\x00\x00\x00" + bytes(16),
            "load_failed",
            "has GGUF version 1; versions 2 and 3 can be loaded",
        ),
    ],
    ids=["missing", "empty", "archive", "cut header", "old version"],
)
async def test_a_file_that_cannot_be_a_model(
    content: bytes | None, code: str, text: str, agent: LocalAgent, tiny_spec: MakeSpec, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    report = await failed(agent, tiny_spec(model_path=path))
    assert report.error_code == code
    assert report.error_message is not None
    assert text in report.error_message
    assert str(path) in report.error_message
    assert report.exit_code == EXIT_FAILED
    assert report.log_tail[-1].startswith("runner: ")


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (
            0.5,
            "data is not within the file bounds, model is corrupted or incomplete; the model file is truncated",
        ),
        (0.0005, "llama.cpp could not load the model: "),
    ],
    ids=["tensors cut", "metadata cut"],
)
async def test_a_truncated_model_is_told_in_the_engines_words(
    share: float, text: str, agent: LocalAgent, tiny_spec: MakeSpec, tiny_model: Path, tmp_path: Path
) -> None:
    whole = tiny_model.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[: int(len(whole) * share)])
    report = await failed(agent, tiny_spec(model_path=path))
    assert report.error_code == "load_failed"
    assert report.error_message is not None
    assert text in report.error_message
    assert report.exit_code == EXIT_FAILED
    assert any("error loading model" in line or "gguf_init" in line for line in report.log_tail)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux can limit another process")
async def test_a_window_larger_than_memory_is_out_of_memory(agent: LocalAgent, tiny_spec: MakeSpec) -> None:
    """16 GiB of cache for a process that may have 4, so that the rest of the machine does not feel it."""
    spec = tiny_spec(context_tokens=8_000_000)
    started = await agent.start_runner(spec)
    assert started.pid is not None
    resource.prlimit(started.pid, resource.RLIMIT_AS, (4 * GIB, 4 * GIB))
    report = await failed(agent, spec)
    assert (report.error_code, report.exit_code) == ("out_of_memory", EXIT_FAILED)
    assert report.error_message is not None
    assert "ask for a smaller window or fewer slots, or free memory on this node" in report.error_message


async def test_an_unknown_cache_type_names_the_known_ones(agent: LocalAgent, tiny_spec: MakeSpec) -> None:
    report = await failed(agent, tiny_spec(cache_type_k="fp8"))
    assert report.error_code == "load_failed"
    assert report.error_message == (
        "cache_type_k='fp8' is not known to llama.cpp; "
        "one of f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl"
    )


async def test_a_fixed_port_that_is_taken_is_told(agent: LocalAgent, tiny_spec: MakeSpec) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        report = await failed(agent, tiny_spec(port=port))
    assert report.error_code == "port_in_use"
    assert report.error_message is not None
    assert f"port {port} on 127.0.0.1 is in use by another process" in report.error_message


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV], ids=["SIGKILL", "SIGSEGV"])
async def test_the_death_of_a_ready_runner_is_seen_with_its_log(
    number: signal.Signals, agent: LocalAgent, tiny_spec: MakeSpec
) -> None:
    spec = tiny_spec()
    report = await agent.start_runner(spec)
    while report.state is not RunnerState.READY:
        report = await agent.wait_runner(spec.runner_id, report, 30)
    assert report.pid is not None
    os.kill(report.pid, number)
    report = await agent.wait_runner(spec.runner_id, report, 30)
    assert report.state is RunnerState.FAILED
    assert (report.error_code, report.exit_code) == ("runner_crashed", -number)
    assert report.error_message is not None
    assert ("killed (signal 9)" if number is signal.SIGKILL else "SIGSEGV") in report.error_message
    assert 0 < len(report.log_tail) <= 40
    assert any("model loaded" in line for line in report.log_tail)
    assert report.endpoint is None


async def test_another_runner_is_not_harmed_by_a_crash(agent: LocalAgent, tiny_spec: MakeSpec) -> None:
    doomed, other = tiny_spec(), tiny_spec()
    reports = {}
    for spec in (doomed, other):
        report = await agent.start_runner(spec)
        while report.state is not RunnerState.READY:
            report = await agent.wait_runner(spec.runner_id, report, 30)
        reports[spec.runner_id] = report
    os.kill(reports[doomed.runner_id].pid, signal.SIGKILL)
    lost = await agent.wait_runner(doomed.runner_id, reports[doomed.runner_id], 30)
    assert (lost.state, lost.exit_code) == (RunnerState.FAILED, -signal.SIGKILL)
    assert await agent.wait_runner(other.runner_id, reports[other.runner_id], 0.2) == reports[other.runner_id]
