"""Nodes are named by their names, on every command; a name that means none, or several, is never ignored."""

from __future__ import annotations

import json

import pytest

from support.server import DEMO_MODEL_ID, Server
from wharfinger.cli.node_choice import chosen_nodes
from wharfinger.cli.output import CliError, Exit

NAMES = {"node_aab": "lab-1", "node_aac": "lab-2", "node_abb": "twin", "node_bbb": "twin"}


@pytest.mark.parametrize(
    ("wanted", "node_id"),
    [("lab-1", "node_aab"), ("node_abb", "node_abb"), ("node_ab", "node_abb"), ("node_b", "node_bbb")],
)
def test_by_name_id_and_beginning_of_an_id(wanted: str, node_id: str) -> None:
    assert chosen_nodes("--exclude", [wanted], NAMES) == (node_id,)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("twin", "--exclude 'twin' means 2 nodes; give one of the ids node_abb, node_bbb"),
        ("node_aa", "--exclude 'node_aa' means 2 nodes; give one of the ids node_aab, node_aac"),
        ("lab-3", "--exclude 'lab-3': no such node in this fleet; the closest is lab-"),
        ("lab", "--exclude 'lab': no such node in this fleet; the closest is lab-"),
        ("", "--exclude '': no such node in this fleet; there are lab-1, lab-2, twin"),
    ],
)
def test_none_or_several(wanted: str, message: str) -> None:
    with pytest.raises(CliError) as raised:
        chosen_nodes("--exclude", ["lab-1", wanted], NAMES)
    assert str(raised.value).startswith(message)
    assert raised.value.code is Exit.USAGE


def test_a_fleet_of_one() -> None:
    with pytest.raises(CliError, match="no such node in this fleet; there is only vm"):
        chosen_nodes("--node", ["lab-1"], {"node_a": "vm"})


def test_an_empty_fleet() -> None:
    with pytest.raises(CliError, match="no such node in this fleet; it has none"):
        chosen_nodes("--node", ["lab-1"], {})


def test_nothing_is_launched_on_a_node_that_was_excluded_by_name(server: Server) -> None:
    (node,) = json.loads(server.wharf("nodes", "-o", "json").stdout)["nodes"]
    for named in (node["name"], node["node_id"], node["node_id"][:12]):
        planned = server.wharf("plan", DEMO_MODEL_ID, "--exclude", named, "-o", "json")
        assert planned.returncode == 5, planned.stderr
        assert [each["code"] for each in json.loads(planned.stdout)["nodes"]] == ["node_excluded"]
        refused = server.wharf("launch", DEMO_MODEL_ID, "--exclude", named, "-o", "json")
        assert refused.returncode == 5, refused.stderr
        assert json.loads(refused.stdout)["error"]["reason"] == "all_nodes_excluded"
    assert json.loads(server.wharf("ps", "-o", "json").stdout)["instances"] == []
    required = server.wharf("plan", DEMO_MODEL_ID, "--node", node["name"], "-o", "json")
    assert required.returncode == 0, required.stderr
    imagined = server.wharf("plan", DEMO_MODEL_ID, "--what-if", "+1xcpu-64GB", "--exclude", "what-if-1")
    assert imagined.returncode == 0, imagined.stderr
    assert "node_excluded" in imagined.stdout


@pytest.mark.parametrize("command", ["plan", "launch"])
@pytest.mark.parametrize("option", ["--exclude", "--node"])
def test_an_unknown_node_exits_2_and_nothing_is_launched(server: Server, command: str, option: str) -> None:
    refused = server.wharf(command, DEMO_MODEL_ID, option, "nosuch", "-o", "json")
    assert refused.returncode == 2
    assert f"{option} 'nosuch': no such node" in json.loads(refused.stdout)["error"]["message"]
    assert json.loads(server.wharf("ps", "-o", "json").stdout)["instances"] == []


def test_the_api_ignores_ids_it_does_not_know(server: Server) -> None:
    """As its contract says; only the command line, which people type, is strict."""
    with server.client() as client:
        answer = client.get(
            "/instance/previews", params={"model_id": DEMO_MODEL_ID, "excluded_node_ids": "nosuch"}
        )
    assert answer.status_code == 200
    assert answer.json()["previews"][0]["plan"] is not None
