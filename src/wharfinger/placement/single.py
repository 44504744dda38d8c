"""Can one node hold the whole model? Filters of a node, and the arrangements of its devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from wharfinger.catalog.card import ModelCard
from wharfinger.placement import backends, codes, memory
from wharfinger.placement.backends import DeviceUse
from wharfinger.placement.fit import Arrangement, Fit, MemberShortage, Shortage, Stage, fit
from wharfinger.placement.memory.backends import CPU
from wharfinger.placement.memory.interface import Pool
from wharfinger.placement.ports import PORT_RANGE
from wharfinger.placement.types import NodeFacts, NodeRefusal, PlanRequest, PoolCount, Sharding
from wharfinger.placement.units import gib
from wharfinger.placement.window import PLANNING_CONTEXT_TOKENS, WindowGoal
from wharfinger.placement.workspace import NodePools, Workspace

GIB = 1024**3
FLAG_ACCELERATOR: Final = "accelerator_not_measured"
"""The plan runs on the CPU though the node has an engine for an accelerator: of no device for it the memory is told."""


@dataclass(frozen=True, slots=True)
class TagRefusal:
    """Why one backend of one node is out."""

    code: str
    tag: str
    shortage: MemberShortage | None = None
    missing: tuple[str, ...] = ()
    detail: str = ""
    pools: tuple[Pool, ...] = ()
    """The pools that are too small."""

    @property
    def counted(self) -> tuple[PoolCount, ...]:
        """How the pools that are too small were counted."""
        return tuple(
            PoolCount(pool.device_index, pool.left_bytes, MappingProxyType({**(pool.counted or {})}))
            for pool in self.pools
        )


def gate(work: Workspace, node: NodeFacts, request: PlanRequest) -> str | None:
    """Code of the first filter, other than memory, that removes the node; ``None`` when it may serve."""
    if node.node_id in request.excluded_node_ids:
        return codes.NODE_EXCLUDED
    if not node.reachable:
        return codes.NODE_UNREACHABLE
    if node.role != "full":
        return codes.ROLE_NOT_SERVING
    if node.backends is None:
        return codes.ENGINES_UNKNOWN
    if not work.tags(node, request.backend):
        builds = {work.build_problem(node, tag) for tag in work.tags_of_any_build(node, request.backend)}
        unfit = (codes.ENGINE_BUILD_UNKNOWN, codes.ENGINE_BUILD)
        return next((code for code in unfit if code in builds), codes.ENGINE_MISSING)
    used = work.ports_in_use.get(node.node_id)
    if used is not None and len(used) >= len(PORT_RANGE) and used.issuperset(PORT_RANGE):
        return codes.NO_FREE_PORT
    return None


def fit_node(work: Workspace, node: NodeFacts, request: PlanRequest) -> Fit | TagRefusal:
    """The node's most preferred backend that holds the whole model, or why none does.

    Of several refusals the one nearest to a plan is told: missing facts, then the smallest shortage; a device that was
    not reported at all is the furthest.
    """
    refused: list[TagRefusal] = []
    for tag in work.tags(node, request.backend):
        outcome = fit_tag(work, node, tag, work.goal(tag, request))
        if isinstance(outcome, Fit):
            return _unless_awaited(work, node, tag, refused, outcome)
        refused.append(outcome)
    if not refused:
        return TagRefusal(codes.ENGINE_MISSING, "")
    return min(refused, key=lambda refusal: _nearness(node, refusal))


def _unless_awaited(
    work: Workspace, node: NodeFacts, tag: str, refused: Sequence[TagRefusal], fitted: Fit
) -> Fit | TagRefusal:
    """What fits on the CPU, unless an accelerator that comes first and may hold the model is only not measured yet.

    Falling through would silently give a slow plan for want of one sample. Where no device was reported at all,
    waiting may never end, so that plan is made and flagged. A measured device counts with what is usable of it, an
    unread one whole.
    """
    if backends.compute_of(tag) != CPU:
        return fitted
    weights = work.weight_bytes(0, work.card.n_layers)
    unreported = False
    for refusal in refused:
        if refusal.code != codes.MEMORY_UNKNOWN or backends.compute_of(refusal.tag) == CPU:
            continue
        totals = memory.device_totals(node, refusal.tag)
        measured = {pool.device_index: pool.usable_bytes for pool in work.pools(node, refusal.tag).devices}
        most = [measured.get(index, total) for index, total in totals.items()]
        if most and (None in most or sum(each or 0 for each in most) >= weights):
            return replace(refusal, detail=f"{tag} would hold it, where it is asked for")
        unreported = unreported or not totals
    return replace(fitted, flags=(*fitted.flags, FLAG_ACCELERATOR)) if unreported else fitted


def awaits_device(work: Workspace, node: NodeFacts, tag: str, only: str | None) -> TagRefusal | None:
    """Why the CPU of a node is left out of sets: a device that the same request may use is not measured yet."""
    if backends.compute_of(tag) != CPU:
        return None
    for other in work.tags(node, only):
        if other == tag:
            break
        missing = work.pools(node, other).missing
        if missing and memory.device_totals(node, other):
            return TagRefusal(codes.MEMORY_UNKNOWN, other, missing=missing)
    return None


def fit_tag(work: Workspace, node: NodeFacts, tag: str, goal: WindowGoal) -> Fit | TagRefusal:
    """Whether the node holds the whole model with one backend."""
    if goal.requested is not None and goal.limit is not None and goal.requested > goal.limit:
        return TagRefusal(codes.CONTEXT_TOO_LARGE, tag, detail=f"{tag} serves at most {goal.limit} tokens")
    offered = work.pools(node, tag)
    refused = offered_refusal(work, node, tag, offered)
    if refused is not None:
        return refused
    measured = [
        x for p in offered.devices for x in (p.device_index, p.domain, p.usable_bytes, p.deficit_bytes)
    ]
    key = (tag, goal, offered.host, *measured)
    outcome = work.node_fits.get(key)
    if outcome is None:
        outcome = work.node_fits[key] = _fit_pools(work, tag, offered, goal)
    if isinstance(outcome, Shortage):
        if offered.missing:
            return TagRefusal(codes.MEMORY_UNKNOWN, tag, missing=offered.missing)
        return short_of_memory(work, node, tag, outcome.members[0])
    return outcome


def short_of_memory(
    work: Workspace, node: NodeFacts, tag: str, shortage: MemberShortage | None
) -> TagRefusal:
    """The refusal of a node that lacks memory, with how its pools were counted."""
    if shortage is None:
        return TagRefusal(codes.MEMORY_SHORT, tag)
    devices = work.pools(node, tag).devices
    pools = {pool.device_index: pool for pool in devices}
    if None in shortage.pools and None not in pools:
        pools[None] = memory.host_pool(node, work.claims(node))
    short = tuple([pools[index] for index in shortage.pools])
    key = (tag, len(devices))
    detail = work.ruled_out.get(key)
    if detail is None:
        detail = work.ruled_out[key] = _ruled_out(work.card, tag, len(devices))
    capped = _capped(work, node, shortage)
    if capped:
        detail = f"{capped}; {detail}" if detail else capped
    return TagRefusal(codes.MEMORY_SHORT, tag, shortage=shortage, detail=detail, pools=short)


def _capped(work: Workspace, node: NodeFacts, shortage: MemberShortage) -> str:
    """The operator's cap in words, where what is usable is what it leaves; empty where it is not."""
    cap_bytes = node.memory_cap_bytes
    if cap_bytes is None:
        return ""
    left_bytes = memory.node_cap_left(node, work.claims(node))
    assert left_bytes is not None  # there is a cap
    if max(0, shortage.usable) != max(0, left_bytes):
        return ""
    reserved_bytes = cap_bytes - left_bytes
    reserved = f", of which {gib(reserved_bytes)} is reserved" if reserved_bytes else ""
    return f"capped at {gib(cap_bytes)}{reserved}"


def needs_host(work: Workspace, tag: str) -> bool:
    """Whether the backend takes RAM beside its device."""
    return work.sized(tag, 0, work.card.n_layers, 1, True, PLANNING_CONTEXT_TOKENS).host_bytes > 0


def offered_refusal(work: Workspace, node: NodeFacts, tag: str, offered: NodePools) -> TagRefusal | None:
    """Filters on the pools a backend gets, before any sizing."""
    minimum = work.card.placement.min_vram_gib
    if minimum is not None and (refusal := _too_little_vram(node, tag, offered, minimum)) is not None:
        return refusal
    if not offered.devices:
        if offered.missing:
            return TagRefusal(codes.MEMORY_UNKNOWN, tag, missing=offered.missing)
        return TagRefusal(codes.DEVICE_MISSING, tag)
    if offered.host_missing and not offered.host.shared and needs_host(work, tag):
        return TagRefusal(codes.MEMORY_UNKNOWN, tag, missing=offered.host_missing)
    return None


def _too_little_vram(node: NodeFacts, tag: str, offered: NodePools, minimum: float) -> TagRefusal | None:
    """The card's ``minVramGib``: one device that the backend may use must be that large. RAM is no VRAM."""
    enough = minimum * GIB
    totals = memory.device_totals(node, tag)
    if any((totals.get(pool.device_index) or 0) >= enough for pool in offered.devices):
        return None
    if not totals and offered.missing:
        return TagRefusal(codes.MEMORY_UNKNOWN, tag, missing=offered.missing)
    hopeful = tuple(
        f"devices[{index}]." for index, total in totals.items() if total is None or total >= enough
    )
    missing = tuple(fact for fact in offered.missing if fact.startswith((*hopeful, "ram_")))
    if hopeful and missing:
        return TagRefusal(codes.MEMORY_UNKNOWN, tag, missing=missing)
    largest = max((total or 0 for total in totals.values()), default=None)
    has = f"{tag} runs in RAM" if largest is None else f"largest device {gib(largest)}"
    return TagRefusal(codes.MIN_VRAM, tag, detail=f"{has}, {minimum:g} GiB needed")


def _fit_pools(work: Workspace, tag: str, offered: NodePools, goal: WindowGoal) -> Fit | Shortage:
    least: Shortage | None = None
    for stages in node_stages(work, tag, offered.devices, 0):
        outcome = fit(work, Arrangement(tag, Sharding.PIPELINE, stages, (offered.host,)), goal)
        if isinstance(outcome, Fit):
            return outcome
        if least is None or outcome.short_by < least.short_by:
            least = outcome
    assert least is not None  # one device is always an arrangement
    return least


def node_stages(work: Workspace, tag: str, pools: Sequence[Pool], member: int) -> Iterator[tuple[Stage, ...]]:
    """Ways to use a node's devices with a backend, fewest devices first. Memory of devices is never summed."""
    yield (Stage.of(member, (min(pools, key=_largest_first),)),)
    use = backends.device_use(tag)
    if use is DeviceUse.SINGLE:
        return
    by_size = sorted(pools, key=_largest_first)
    card = work.card
    for count in range(2, len(by_size) + 1):
        chosen = sorted(by_size[:count], key=lambda pool: pool.device_index or 0)
        if use is DeviceUse.TENSOR:
            if not indivisible(card, count):
                yield (Stage.of(member, chosen),)
        elif count <= card.n_layers:
            yield tuple(Stage.of(member, (pool,)) for pool in chosen)


def _largest_first(pool: Pool) -> tuple[int, int]:
    return (-(pool.usable_bytes or 0), pool.device_index or 0)


def indivisible(card: ModelCard, count: int) -> tuple[str, ...]:
    """What cannot be cut over that many devices of one node. KV heads are repeated when there are more devices."""
    kv_heads = card.num_key_value_heads
    lacking: list[str] = []
    if card.hidden_size % count:
        lacking.append(f"hidden size {card.hidden_size}")
    if card.num_attention_heads is not None and card.num_attention_heads % count:
        lacking.append(f"{card.num_attention_heads} heads")
    if kv_heads and kv_heads % count and count % kv_heads:
        lacking.append(f"{kv_heads} KV heads")
    return tuple(lacking)


def _ruled_out(card: ModelCard, tag: str, devices: int) -> str:
    """Which numbers of a node's devices a tensor engine cannot use, and why; empty when it can use each."""
    if backends.device_use(tag) is not DeviceUse.TENSOR:
        return ""
    reasons = [(count, indivisible(card, count)) for count in range(2, devices + 1)]
    return "; ".join(f"{count} devices do not divide {', '.join(why)}" for count, why in reasons if why)


def _nearness(node: NodeFacts, refusal: TagRefusal) -> tuple[int, int]:
    unreported = backends.compute_of(refusal.tag) != CPU and not memory.device_totals(node, refusal.tag)
    if refusal.code == codes.MEMORY_UNKNOWN and not unreported:
        return (0, 0)
    if refusal.shortage is not None:
        return (1, refusal.shortage.short_by)
    return (2, 0)


def node_refusal(node: NodeFacts, refusal: TagRefusal) -> NodeRefusal:
    """The refusal of a node in words, with its arithmetic."""
    if refusal.shortage is not None:
        short = refusal.shortage
        message = (
            f"{node.name} is short of memory for {refusal.tag} by {gib(short.short_by)}: "
            f"needs {gib(short.needed)}, usable {gib(short.usable)}"
        )
        if refusal.detail:
            message += f" ({refusal.detail})"
        return NodeRefusal(
            node.node_id,
            node.name,
            refusal.code,
            message,
            short.needed,
            short.usable,
            short.short_by,
            short.parts,
            missing_facts=refusal.missing,
            counted=refusal.counted,
        )
    if refusal.missing:
        message = f"{node.name} has not reported {', '.join(refusal.missing)} yet (needed for {refusal.tag})"
        if refusal.detail:
            message += f"; {refusal.detail}"
        return NodeRefusal(node.node_id, node.name, refusal.code, message, missing_facts=refusal.missing)
    detail = f": {refusal.detail}" if refusal.detail else ""
    message = f"{node.name}: {codes.MEANINGS[refusal.code]}{detail}"
    return NodeRefusal(node.node_id, node.name, refusal.code, message)


def _build_message(work: Workspace, node: NodeFacts, tags: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """What the node's builds are, what they should be, and which of them are not known."""
    engines = dict.fromkeys(map(backends.engine_of, tags))
    needs = [need for need in work.card.placement.engine_builds if need.engine in engines]
    wanted = "; ".join(f"{need.engine} {' or '.join(need.builds)}" for need in needs)
    has = ", ".join(
        f"{need.engine} {node.engine_builds.get(need.engine, 'of unknown build')}" for need in needs
    )
    unknown = [need.engine for need in needs if need.engine not in node.engine_builds]
    missing = tuple(f"engine_builds[{engine}]" for engine in unknown)
    return f"{node.name} has {has}; the card runs with {wanted}", missing


def gate_refusal(work: Workspace, node: NodeFacts, code: str, request: PlanRequest) -> NodeRefusal:
    """The refusal of a node that failed a filter other than memory."""
    missing: tuple[str, ...] = ()
    if code == codes.ENGINES_UNKNOWN:
        missing = ("backends",)
        message = f"{node.name} has not reported its engines yet"
    elif code == codes.ENGINE_MISSING:
        wanted = request.backend or ", ".join(backends.accepted_backends(work.card))
        has = ", ".join(sorted(node.backends or ())) or "none"
        message = f"{node.name} has no engine for this: wanted {wanted}; has {has}"
    elif code in (codes.ENGINE_BUILD, codes.ENGINE_BUILD_UNKNOWN):
        message, missing = _build_message(work, node, work.tags_of_any_build(node, request.backend))
    elif code == codes.NODE_UNREACHABLE:
        message = f"{node.name} is unreachable" + (
            f": {node.unreachable_reason}" if node.unreachable_reason else ""
        )
    elif code == codes.ROLE_NOT_SERVING:
        message = f"{node.name} has the role {node.role}; only full nodes serve models"
    else:
        message = f"{node.name}: {codes.MEANINGS[code]}"
    return NodeRefusal(node.node_id, node.name, code, message, missing_facts=missing)
