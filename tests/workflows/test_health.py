"""A node without a usable engine says whether there is none or whether it does not work."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from wharfinger.fleet.agent import NodeReport
from wharfinger.fleet.local import LocalAgent
from wharfinger.workflows.fleet_view import SeenNode
from wharfinger.workflows.health import health_reasons


async def without_engines(agent: LocalAgent, **missing: str) -> NodeReport:
    gib = 2**30
    told = {f"engines.{name}": reason for name, reason in missing.items()} | {
        "swap_total_bytes": "not readable"
    }
    changes = {"engines": (), "missing": told, "disk_free_bytes": 100 * gib, "disk_total_bytes": 200 * gib}
    return (await agent.report()).model_copy(update=changes)


@pytest.mark.parametrize(
    ("missing", "message", "remediation"),
    [
        (
            {"llama_cpp": "not installed; pip install 'wharfinger[llama]'"},
            "no engine found",
            "install one: pip install 'wharfinger[llama]'; the node looks for it once a minute",
        ),
        (
            {
                "llama_cpp": "installed but does not load: libcuda.so.1",
                "vllm": "not installed; pip install vllm",
            },
            "no engine works: installed but does not load: libcuda.so.1",
            "repair its installation; the node looks for it once a minute",
        ),
    ],
)
async def test_why_a_node_has_no_engine(
    missing: dict[str, str], message: str, remediation: str, agent: LocalAgent
) -> None:
    node = SeenNode(await without_engines(agent, **missing), datetime.now(UTC), 0.0)
    (reason,) = health_reasons(node)
    assert (reason.level, reason.code, reason.message, reason.remediation) == (
        "warn",
        "no_engine",
        message,
        remediation,
    )
