"""The local agent with a real engine and a tiny real model."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

import aiohttp
import psutil
import pytest
import uvloop
from pydantic import SecretStr

from support.local_node import DEMO_MODEL_ID, NO_END, demo_spec, wait_for_state
from wharfinger.engines.ports import PORTS
from wharfinger.fleet.agent import (
    AgentError,
    NodeReport,
    RunnerReport,
    RunnerSpec,
    RunnerState,
    StopDeadlines,
)
from wharfinger.fleet.local import LocalAgent

MakeSpec = Callable[..., RunnerSpec]


async def started(agent: LocalAgent, spec: RunnerSpec) -> RunnerReport:
    await agent.start_runner(spec)
    return await wait_for_state(agent, spec.runner_id, RunnerState.READY)


async def get_json(url: str, key: str) -> tuple[int, dict[str, object]]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        return response.status, await response.json()


async def test_the_demo_model_is_served_under_its_name_to_the_key_holder_only(agent: LocalAgent) -> None:
    spec = demo_spec(context_tokens=1000, slots=2)
    ready = await started(agent, spec)
    assert ready.endpoint is not None
    assert ready.endpoint.startswith("http://127.0.0.1:")
    assert int(ready.endpoint.rpartition(":")[2]) in PORTS
    assert ready.engine_load_s is not None
    assert ready.engine_load_s > 0
    assert (ready.layers_loaded, ready.total_layers) == (18, 18)
    key = spec.api_key.get_secret_value()
    assert (await get_json(f"{ready.endpoint}/health", ""))[0] == HTTPStatus.OK
    for path in ("/v1/models", "/metrics", "/slots", "/props"):
        async with aiohttp.ClientSession() as session, session.get(ready.endpoint + path) as response:
            assert (path, response.status) == (path, HTTPStatus.UNAUTHORIZED)
    _, models = await get_json(f"{ready.endpoint}/v1/models", key)
    assert [model["id"] for model in models["data"]] == [DEMO_MODEL_ID]  # pyright: ignore[reportGeneralTypeIssues]
    # 1000 tokens for each of two slots, which llama.cpp rounds up to a multiple of 256.
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as session:
        async with session.get(f"{ready.endpoint}/slots") as response:
            assert [slot["n_ctx"] for slot in await response.json()] == [1024, 1024]
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5, **NO_END}
        async with session.post(f"{ready.endpoint}/v1/chat/completions", json=body) as response:
            answer = await response.json()
    assert answer["usage"]["completion_tokens"] == 5


async def test_states_come_in_the_contract_order(agent: LocalAgent, tiny_spec: MakeSpec) -> None:
    spec = tiny_spec()
    report = await agent.start_runner(spec)
    seen = [report.state]
    while seen[-1] is not RunnerState.READY:
        report = await agent.wait_runner(spec.runner_id, report, 30)
        if report.state is not seen[-1]:
            seen.append(report.state)
    order = [s for s in RunnerState if s in seen]
    assert seen == order
    assert seen[0] is RunnerState.IDLE
    assert RunnerState.LOADING in seen


async def test_the_key_is_in_no_argument_no_environment_and_no_log(
    agent: LocalAgent, tiny_spec: MakeSpec
) -> None:
    spec = tiny_spec(api_key=SecretStr("sk-canary-6f1d0c"))
    ready = await started(agent, spec)
    assert ready.pid is not None
    for process in [psutil.Process(ready.pid), *psutil.Process(ready.pid).children(recursive=True)]:
        assert "canary" not in " ".join(process.cmdline())
        assert "canary" not in str(process.environ())
    await agent.stop_runner(spec.runner_id, StopDeadlines())
    assert "canary" not in (await agent.read_log(spec.runner_id, 0, 1_000_000)).text
    assert "canary" not in repr(spec)
    assert "canary" not in (await agent.runners())[0].model_dump_json()


async def test_the_control_planes_credentials_are_not_handed_to_runners(
    agent: LocalAgent, tiny_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WHARF_DATABASE_URL", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "canary-8c12")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    ready = await started(agent, tiny_spec())
    assert ready.pid is not None
    for process in [psutil.Process(ready.pid), *psutil.Process(ready.pid).children(recursive=True)]:
        variables = process.environ()
        assert variables["OMP_NUM_THREADS"] == "1"
        assert "canary-8c12" not in str(variables)


async def test_a_live_runner_of_the_same_id_is_adopted(agent: LocalAgent, tiny_spec: MakeSpec) -> None:
    spec = tiny_spec()
    reports = await asyncio.gather(*(agent.start_runner(spec) for _ in range(3)))
    assert len({report.pid for report in reports}) == 1
    ready = await wait_for_state(agent, spec.runner_id, RunnerState.READY)
    assert await agent.start_runner(spec) == ready


async def test_an_ended_runner_of_the_same_id_starts_again(agent: LocalAgent, tiny_spec: MakeSpec) -> None:
    spec = tiny_spec()
    first = await started(agent, spec)
    await agent.stop_runner(spec.runner_id, StopDeadlines())
    second = await started(agent, spec)
    assert second.pid != first.pid
    assert len(await agent.runners()) == 1


async def test_runners_have_ports_of_their_own_and_memory_when_asked(
    agent: LocalAgent, tiny_spec: MakeSpec
) -> None:
    specs = [tiny_spec() for _ in range(3)]
    endpoints = {(await started(agent, spec)).endpoint for spec in specs}
    assert len(endpoints) == 3
    report = await agent.report()
    assert {int(str(endpoint).rpartition(":")[2]) for endpoint in endpoints} <= set(report.used_ports)
    runners = await agent.runners()
    assert [r.runner_id for r in runners] == sorted(spec.runner_id for spec in specs)
    assert all(r.resident_bytes is not None and r.resident_bytes > 20_000_000 for r in runners)
    await agent.stop_runner(specs[0].runner_id, StopDeadlines())
    stopped = {r.runner_id: r for r in await agent.runners()}[specs[0].runner_id]
    assert stopped.resident_bytes is None


async def test_waiting_returns_at_the_timeout_or_at_a_change(agent: LocalAgent, tiny_spec: MakeSpec) -> None:
    spec = tiny_spec()
    ready = await started(agent, spec)
    assert await agent.wait_runner(spec.runner_id, ready, 0.05) == ready
    waiting = asyncio.create_task(agent.wait_runner(spec.runner_id, ready, 60))
    await asyncio.sleep(0)
    await agent.stop_runner(spec.runner_id, StopDeadlines())
    async with asyncio.timeout(30):
        assert (await waiting).state is RunnerState.SHUTTING_DOWN


async def test_the_log_is_followed_from_offset_to_end(agent: LocalAgent, tiny_spec: MakeSpec) -> None:
    spec = tiny_spec()
    await started(agent, spec)
    chunk = await agent.read_log(spec.runner_id, 0, 64)
    text = chunk.text
    assert len(text) == 64
    assert not chunk.ended
    await agent.stop_runner(spec.runner_id, StopDeadlines())
    while not chunk.ended:
        chunk = await agent.read_log(spec.runner_id, chunk.next_offset, 64)
        text += chunk.text
    whole = await agent.read_log(spec.runner_id, 0, 1_000_000)
    assert text == whole.text
    assert "model loaded" in text
    end = await agent.read_log(spec.runner_id, -10, 1_000_000)
    assert (end.text, end.next_offset, end.ended) == (whole.text[-10:], whole.next_offset, True)


async def test_only_ended_runners_are_forgotten_and_their_logs_stay(
    agent: LocalAgent, tiny_spec: MakeSpec
) -> None:
    spec = tiny_spec()
    await started(agent, spec)
    with pytest.raises(AgentError) as caught:
        await agent.forget_runner(spec.runner_id)
    assert caught.value.code == "runner_live"
    await agent.stop_runner(spec.runner_id, StopDeadlines())
    await agent.forget_runner(spec.runner_id)
    await agent.forget_runner(spec.runner_id)
    assert await agent.runners() == ()
    assert (await agent.read_log(spec.runner_id, 0, 100)).text


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"backend": "vllm-cuda"}, "engine_missing", "backend 'vllm-cuda' belongs to no engine"),
        ({"world_size": 2}, "unsupported", "serves a model on one node, not on 2"),
        ({"runner_id": "../evil"}, "invalid_spec", "runner_id '../evil' must match"),
        ({"model_path": "model.gguf"}, "invalid_spec", "model_path 'model.gguf' must be an absolute path"),
        ({"slots": 0}, "invalid_spec", "slots 0 must be 1 or more"),
    ],
)
async def test_what_cannot_run_here_is_refused_and_starts_nothing(
    changes: dict[str, object], code: str, text: str, agent: LocalAgent, tiny_spec: MakeSpec
) -> None:
    with pytest.raises(AgentError) as caught:
        await agent.start_runner(tiny_spec(**changes))
    assert caught.value.code == code
    assert text in str(caught.value)
    assert await agent.runners() == ()


async def test_an_engine_that_is_not_installed_is_named_with_its_cure(
    tmp_path: Path, tiny_model: Path
) -> None:
    """In an interpreter that cannot see the wheel."""
    script = Path(__file__).with_name("engineless_agent.py")
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(script), str(tmp_path), str(tiny_model)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    code, message, report = done.stdout.splitlines()
    assert code == "engine_missing"
    assert message == (
        "no engine for backend llama_cpp-cpu is installed on this node: pip install 'wharfinger[llama]'"
    )
    node = NodeReport.model_validate_json(report)
    assert node.engines == ()
    assert node.missing["engines.llama_cpp"] == "not installed; pip install 'wharfinger[llama]'"


def test_it_works_on_the_control_planes_own_event_loop(tmp_path: Path, tiny_spec: MakeSpec) -> None:
    async def launch_and_lose() -> None:
        agent = LocalAgent(tmp_path)
        await agent.start()
        spec = tiny_spec()
        ready = await started(agent, spec)
        assert ready.pid is not None
        os.kill(ready.pid, signal.SIGKILL)
        lost = await agent.wait_runner(spec.runner_id, ready, 30)
        assert (lost.state, lost.exit_code) == (RunnerState.FAILED, -signal.SIGKILL)
        await started(agent, spec)
        await agent.close()
        assert [r.state for r in await agent.runners()] == [RunnerState.SHUTDOWN]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(launch_and_lose())


async def test_a_data_directory_that_vanished_is_told(
    agent: LocalAgent, tiny_spec: MakeSpec, tmp_path: Path
) -> None:
    (tmp_path / "data" / "runners").rename(tmp_path / "elsewhere")
    with pytest.raises(AgentError) as caught:
        await agent.start_runner(tiny_spec())
    assert caught.value.code == "data_dir_unusable"


async def test_unknown_runners_are_named_with_those_there_are(agent: LocalAgent, tiny_spec: MakeSpec) -> None:
    spec = tiny_spec(runner_id="known-one")
    await agent.start_runner(spec)
    for call in (agent.wait_runner("other", None, 0), agent.read_log("../known-one", 0, 10)):
        with pytest.raises(AgentError, match="it knows: known-one") as caught:
            await call
        assert caught.value.code == "runner_unknown"


async def test_nothing_starts_before_start_or_after_close(tmp_path: Path, tiny_spec: MakeSpec) -> None:
    agent = LocalAgent(tmp_path)
    with pytest.raises(AgentError) as early:
        await agent.start_runner(tiny_spec())
    await agent.start()
    await agent.close()
    with pytest.raises(AgentError) as late:
        await agent.start_runner(tiny_spec())
    assert (early.value.code, late.value.code) == ("agent_closed", "agent_closed")
    assert await agent.runners() == ()


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "whole answer"])
async def test_a_client_that_leaves_stops_the_generation(stream: bool, agent: LocalAgent) -> None:
    """llama.cpp sees a broken stream at its next token; without a stream it looks once a second, if nothing else
    happens in its server meanwhile, so this asks for nothing while it waits."""
    asked = 3000
    spec = demo_spec(context_tokens=4096)
    ready = await started(agent, spec)
    headers = {"Authorization": f"Bearer {spec.api_key.get_secret_value()}"}
    body = {"prompt": "Once", "max_tokens": asked, "stream": stream, "ignore_eos": True}
    async with aiohttp.ClientSession(headers=headers) as leaving:
        request = asyncio.create_task(
            leaving.post(f"{ready.endpoint}/v1/completions", json=body).__aenter__()
        )
        if stream:
            await (await request).content.readline()
        else:
            await asyncio.sleep(0.5)
            request.cancel()
    await asyncio.sleep(1.5)
    async with aiohttp.ClientSession(headers=headers) as session:
        async with asyncio.timeout(60):
            while True:
                async with session.get(f"{ready.endpoint}/slots") as response:
                    (slot,) = await response.json()
                if not slot["is_processing"]:
                    break
                await asyncio.sleep(1.5)
        async with session.get(f"{ready.endpoint}/metrics") as response:
            metrics = await response.text()
    (line,) = [row for row in metrics.splitlines() if row.startswith("llamacpp:tokens_predicted_total ")]
    assert float(line.split()[1]) < asked
