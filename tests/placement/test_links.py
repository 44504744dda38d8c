"""Links: addresses, their order, and rings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.fleets import ask, card, fleet, mac, mesh
from wharfinger.placement.links import COORDINATOR_ORDER, LinkIndex, interface_class, is_routable
from wharfinger.placement.planner import plan
from wharfinger.placement.types import InstanceMeta, LinkFacts


def both(left: str, right: str, interface: str, **values: float) -> tuple[LinkFacts, LinkFacts]:
    """A link in both directions."""
    return (
        LinkFacts(left, right, interface, f"host-{right}", **values),  # type: ignore[arg-type]
        LinkFacts(right, left, interface, f"host-{left}", **values),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("interface", "address", "expected"),
    [
        ("thunderbolt", "169.254.3.4", "thunderbolt"),
        ("ethernet", "100.64.0.1", "vpn"),
        ("ethernet", "100.127.255.254", "vpn"),
        ("ethernet", "100.128.0.1", "ethernet"),
        ("thunderbolt", "fd7a:115c:a1e0::5", "vpn"),
        ("vpn", "10.0.0.5", "vpn"),
        ("token-ring", "10.0.0.5", "unknown"),
        ("wifi", "some-host", "wifi"),
        ("wifi", None, "wifi"),
    ],
)
def test_a_vpn_is_known_by_its_address_not_its_label(
    interface: str, address: str | None, expected: str
) -> None:
    """Instances notes 6.4.17."""
    assert interface_class(LinkFacts("a", "b", interface, address)) == expected


def test_thunderbolt_before_lan_before_vpn_and_a_vpn_alone_still_connects() -> None:
    """Instances notes 6.4.17."""
    thunderbolt = LinkFacts("a", "b", "thunderbolt", "169.254.1.1")
    lan = LinkFacts("a", "b", "ethernet", "10.0.0.2")
    vpn = LinkFacts("a", "b", "thunderbolt", "100.64.1.1")
    assert LinkIndex([vpn, lan, thunderbolt]).best("a", "b") == thunderbolt
    assert LinkIndex([vpn, lan]).best("a", "b") == lan
    assert LinkIndex([vpn]).best("a", "b") == vpn
    assert LinkIndex([vpn]).best("b", "a") is None


def test_a_coordinator_is_reached_over_the_lan_first() -> None:
    """Control traffic leaves Thunderbolt to the data."""
    thunderbolt = LinkFacts("a", "b", "thunderbolt", "169.254.1.1")
    lan = LinkFacts("a", "b", "ethernet", "10.0.0.2")
    assert LinkIndex([thunderbolt, lan]).best("a", "b", COORDINATOR_ORDER) == lan


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("169.254.1.1", False),
        ("127.0.0.1", False),
        ("fe80::1", False),
        ("10.0.0.1", True),
        ("host", True),
        (None, False),
    ],
)
def test_routable(address: str | None, expected: bool) -> None:
    """Donors may not be reached over link-local, loopback or unknown addresses."""
    assert is_routable(LinkFacts("a", "b", address=address)) is expected


def test_of_equal_interfaces_the_faster_then_the_nearer_wins() -> None:
    """Bandwidth, then latency, then address: a total order."""
    slow = LinkFacts("a", "b", "ethernet", "10.0.0.1", bandwidth_bytes_per_s=1e8)
    fast = LinkFacts("a", "b", "ethernet", "10.0.0.2", bandwidth_bytes_per_s=1e9, latency_s=0.002)
    near = LinkFacts("a", "b", "ethernet", "10.0.0.3", bandwidth_bytes_per_s=1e9, latency_s=0.001)
    assert LinkIndex([slow, fast, near]).best("a", "b") == near
    assert LinkIndex([near, fast, slow]).best("a", "b") == near


def test_the_ring_avoids_the_worst_link() -> None:
    """Four nodes, Thunderbolt around the square a-c-b-d, Wi-Fi across."""
    links = [
        link
        for left, right in (("a", "c"), ("c", "b"), ("b", "d"), ("d", "a"))
        for link in both(left, right, "thunderbolt")
    ]
    links += [*both("a", "b", "wifi"), *both("c", "d", "wifi")]
    assert LinkIndex(links).ring(["a", "b", "c", "d"]) == ("a", "c", "b", "d")


def test_no_ring_where_a_neighbour_path_is_missing() -> None:
    """Three nodes in a line; a one-way link is no pair."""
    line = [*both("a", "b", "ethernet"), *both("b", "c", "ethernet")]
    assert LinkIndex(line).ring(["a", "b", "c"]) is None
    assert LinkIndex([LinkFacts("a", "b", "ethernet")]).ring(["a", "b"]) is None


def test_rings_of_many_nodes_follow_the_nearest_neighbour() -> None:
    """Beyond seven nodes the ring is found step by step, and it is closed."""
    names = [f"n{i:02d}" for i in range(12)]
    links = [*mesh(*names, interface="wifi")]
    for left, right in zip(names, [*names[1:], names[0]], strict=True):
        links += both(left, right, "thunderbolt")
    ring = LinkIndex(links).ring(names)
    assert ring in (tuple(names), (names[0], *reversed(names[1:])))


def test_rdma_pairs_need_both_directions() -> None:
    """A mesh edge is two RDMA links."""
    one_way = LinkIndex([LinkFacts("a", "b", rdma=True, rdma_interface="en5")])
    assert one_way.rdma_mutual == {}
    two_way = LinkIndex(mesh("a", "b", rdma=True))
    assert two_way.rdma_mutual == {"a": frozenset({"b"}), "b": frozenset({"a"})}
    assert two_way.rdma_interface("a", "b") == "rdma_a_b"


@pytest.mark.parametrize(("address", "linked"), [("127.0.0.1", False), (None, False), ("169.254.1.1", True)])
def test_neighbours_need_a_known_address_that_is_no_loopback(address: str | None, linked: bool) -> None:
    """A ring over 127.0.0.1 would talk to itself; an address nobody knows cannot be dialled."""
    there = LinkFacts("a", "b", "ethernet", address)
    index = LinkIndex([there, LinkFacts("b", "a", "ethernet", "10.0.0.1")])
    assert index.closed(["a", "b"]) is linked
    assert index.best("a", "b") == (there if linked else None)
    assert index.unaddressed("a", "b") is (address is None)


def test_a_ring_of_unknown_addresses_is_pending_and_names_the_fact() -> None:
    """Waiting may bring the address."""
    links = [LinkFacts("a", "b", "ethernet"), LinkFacts("b", "a", "ethernet", "10.0.0.1")]
    refusal = plan(fleet(mac("a"), mac("b"), links=links), card(), ask(min_nodes=2)).refusal
    assert refusal is not None
    assert (refusal.code, refusal.category) == ("links_unknown", "placement_info_pending")
    assert [node.missing_facts for node in refusal.nodes] == [("link_address",), ("link_address",)]


def test_rdma_without_an_interface_name_is_not_rdma_yet() -> None:
    """The engine is told interfaces by name, so a link without one is a missing fact."""
    nameless = [replace(link, rdma_interface=None) for link in mesh("a", "b", rdma=True)]
    assert LinkIndex(nameless).rdma_mutual == {}
    asked = ask(min_nodes=2, meta=InstanceMeta.JACCL)
    refusal = plan(fleet(mac("a"), mac("b"), links=nameless), card(), asked).refusal
    assert refusal is not None
    assert (refusal.code, refusal.category) == ("links_unknown", "placement_info_pending")
    assert [node.missing_facts for node in refusal.nodes] == [("rdma_interface",), ("rdma_interface",)]
    assert plan(fleet(mac("a"), mac("b"), links=mesh("a", "b", rdma=True)), card(), asked).plans
