"""The documented total order over candidates, and its parts for people to read.

Best first: fits without eviction, backend preference, fewer nodes, expected speed, files already there, load, free
memory, node ids. A part that is not known sorts after every known value of that part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from wharfinger.placement.fit import Fit
from wharfinger.placement.hardware import known_accelerator
from wharfinger.placement.memory.interface import Pool
from wharfinger.placement.types import InstanceMeta, NodeFacts, ScorePart, Sharding
from wharfinger.placement.workspace import Workspace

NO_EVICTION = ScorePart("fits_without_eviction", 1.0, "memory is free now")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run the model, before it is written out as a plan."""

    members: tuple[NodeFacts, ...]
    """Nodes in rank order."""
    fit: Fit
    sharding: Sharding
    meta: InstanceMeta

    @property
    def tag(self) -> str:
        """The backend all members use; the engine when they use different ones of it."""
        return self.fit.arrangement.tag

    @property
    def tags(self) -> tuple[str, ...]:
        """Backends in use."""
        return self.fit.arrangement.tags or (self.fit.arrangement.tag,)


@dataclass(frozen=True, slots=True)
class Score:
    """What a candidate is ranked by. Larger is better except for ``node_ids``."""

    preference: int
    width: int
    passes_per_s: float | None
    files: float
    load: float
    free_bytes: int
    node_ids: tuple[str, ...]

    @property
    def key(self) -> tuple[object, ...]:
        """Sort key, smallest first."""
        speed = (1, 0.0) if self.passes_per_s is None else (0, -self.passes_per_s)
        return (-self.preference, self.width, *speed, -self.files, self.load, -self.free_bytes, self.node_ids)


def score(work: Workspace, candidate: Candidate) -> Score:
    """Work out every part of a candidate's rank."""
    card, members = work.card, candidate.members
    preference = card.placement.backend_preference
    files = load = 0.0
    for node in members:
        files += node.local_artifacts.get(card.model_id, 0.0)
        load += work.instance_counts.get(node.node_id, 0) + (node.active_requests or 0)
    free = 0
    for charges in candidate.fit.charges:
        for charge in charges:
            free += charge.usable_bytes - charge.needed_bytes
    return Score(
        preference=len(preference) - max(map(work.preference, candidate.tags)),
        width=len(members),
        passes_per_s=passes_per_second(work, candidate),
        files=files / len(members),
        load=load,
        free_bytes=free,
        node_ids=tuple(sorted(node.node_id for node in members)),
    )


def score_parts(ranked: Score) -> tuple[ScorePart, ...]:
    """The score, part by part, in the order it is compared."""
    speed = (
        "bound by memory bandwidth and links" if ranked.passes_per_s is not None else "bandwidth not known"
    )
    return (
        NO_EVICTION,
        _shared_part("backend_preference", ranked.preference),
        _shared_part("width", -ranked.width),
        _shared_part("expected_passes_per_s", ranked.passes_per_s, speed),
        _shared_part("files_present", ranked.files),
        _shared_part("load", -ranked.load),
        ScorePart("free_memory_bytes", ranked.free_bytes),
        ScorePart("node_id", None, ", ".join(ranked.node_ids)),
    )


@lru_cache(maxsize=1024)
def _shared_part(name: str, value: float | None, detail: str = "") -> ScorePart:
    """A part that many candidates of a fleet have alike."""
    return ScorePart(name, value, detail)


def passes_per_second(work: Workspace, candidate: Candidate) -> float | None:
    """How often the weights a token needs can be read in a second: an upper bound on tokens per second.

    Pipeline stages follow one another, tensor ranks read at the same time. Each boundary between nodes adds the
    link's latency and one 16-bit hidden state over its bandwidth, where they are known.
    """
    fit = candidate.fit
    arrangement = fit.arrangement
    tensor = arrangement.sharding is Sharding.TENSOR
    seconds = 0.0
    for stage, (start, end), (width, _) in zip(arrangement.stages, fit.ranges, arrangement.cuts, strict=True):
        weight_bytes = work.pass_bytes(start, end) / width
        bandwidth = _slowest(candidate.members[stage.member], stage.pools)
        if bandwidth is None:
            return None
        seconds = max(seconds, weight_bytes / bandwidth) if tensor else seconds + weight_bytes / bandwidth
    seconds += _link_seconds(work, candidate)
    return 1.0 / seconds if seconds > 0 else None


def _slowest(node: NodeFacts, pools: Sequence[Pool]) -> float | None:
    slowest: float | None = None
    for pool in pools:
        bandwidth = bandwidth_of(node, pool.device_index)
        if bandwidth is None:
            return None
        slowest = bandwidth if slowest is None else min(slowest, bandwidth)
    return slowest


def bandwidth_of(node: NodeFacts, device_index: int | None) -> float | None:
    """Memory bandwidth of a pool: as reported, else the data sheet's for a device name we know.

    A reported figure that is not positive is none.
    """
    if device_index is None:
        return _known(node.ram_bandwidth_bytes_per_s)
    for device in node.devices:
        if device.index == device_index:
            reported = _known(device.bandwidth_bytes_per_s)
            if reported is not None:
                return reported
            known = known_accelerator(device.name)
            return known.bandwidth_bytes_per_s if known else None
    return None


def _known(bandwidth: float | None) -> float | None:
    return bandwidth if bandwidth is not None and bandwidth > 0 else None


def _link_seconds(work: Workspace, candidate: Candidate) -> float:
    members = candidate.members
    if len(members) == 1:
        return 0.0
    hidden_bytes = 2 * work.card.hidden_size
    # A tensor group exchanges twice a layer; a pipeline once at each boundary.
    exchanges = 2 * work.card.n_layers if candidate.sharding is Sharding.TENSOR else 1
    seconds = 0.0
    for left, right in zip(members, (*members[1:], members[0]), strict=True):
        link = work.links.best(left.node_id, right.node_id)
        if link is None:
            continue
        seconds += exchanges * max(0.0, link.latency_s or 0.0)
        bandwidth = _known(link.bandwidth_bytes_per_s)
        if bandwidth is not None:
            seconds += exchanges * hidden_bytes / bandwidth
    return seconds
