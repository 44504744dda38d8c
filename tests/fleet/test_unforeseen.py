"""What no driver should do and some do all the same costs one answer of one node."""

from __future__ import annotations

from collections.abc import Callable

import psutil
import pytest

from support.local_node import wait_for_state
from wharfinger.fleet.agent import AgentError, RunnerSpec, RunnerState
from wharfinger.fleet.local import LocalAgent


async def test_a_measurement_that_breaks_is_a_refusal_and_the_next_one_works(
    agent: LocalAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(*_: object) -> None:
        raise ZeroDivisionError("canary-41c0")

    with monkeypatch.context() as broken:
        broken.setattr(psutil, "virtual_memory", break_off)
        with pytest.raises(AgentError) as refused:
            await agent.report()
    assert refused.value.code == "telemetry_failed"
    assert str(refused.value) == (
        f"node {agent.node_id} could not be measured (ZeroDivisionError); its log has the details"
    )
    assert (await agent.report()).node_id == agent.node_id


@pytest.mark.parametrize("error", [ProcessLookupError(3, "No such process"), psutil.AccessDenied(1)])
async def test_a_process_that_cannot_be_looked_at_hides_no_runner(
    error: Exception, agent: LocalAgent, tiny_spec: Callable[..., RunnerSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    spec = tiny_spec()
    await agent.start_runner(spec)
    await wait_for_state(agent, spec.runner_id, RunnerState.READY)
    with monkeypatch.context() as refusing:
        refusing.setattr(psutil.Process, "children", refuse)
        (report,) = await agent.runners()
        assert (report.state, report.resident_bytes) == (RunnerState.READY, None)
