"""Structured refusals: the code, the one-line summary, and the arithmetic of every node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from wharfinger.placement import backends, codes, memory
from wharfinger.placement.members import spanning_nodes
from wharfinger.placement.pending import (
    PERMANENT_SET_CODES,
    may_matter,
    sets_only,
    unobserved,
    wants_links,
)
from wharfinger.placement.search import WIDEST, Found
from wharfinger.placement.single import TagRefusal, gate_refusal, node_refusal, short_of_memory
from wharfinger.placement.types import (
    InstanceMeta,
    NodeFacts,
    NodeRefusal,
    PlanRequest,
    PlanResult,
    Refusal,
)
from wharfinger.placement.units import gib
from wharfinger.placement.window import card_limit
from wharfinger.placement.workspace import Workspace

_PHRASES: Final = {
    codes.MEMORY_SHORT: "{n} short of memory",
    codes.MEMORY_UNKNOWN: "{n} not reported memory yet",
    codes.ENGINES_UNKNOWN: "{n} not reported engines yet",
    codes.ENGINE_BUILD_UNKNOWN: "{n} not reported builds yet",
    codes.MIN_VRAM: "{n} with too little VRAM per device",
    codes.CONTEXT_TOO_LARGE: "{n} with engines that serve a smaller window",
    codes.DEVICE_MISSING: "{n} without a device for the engine",
    codes.NO_FREE_PORT: "{n} without a free port",
    codes.ENGINE_BUILD: "{n} with another build of the engine",
    codes.ENGINE_MISSING: "{n} lack{s} an engine for it",
    codes.ROLE_NOT_SERVING: "{n} not serving models",
    codes.NODE_UNREACHABLE: "{n} unreachable",
    codes.NODE_EXCLUDED: "{n} excluded",
    codes.LINKS_UNKNOWN: "{n} without observed links",
    codes.ENGINE_CANNOT_SPAN: "{n} with engines for one machine only",
    codes.LINK_MISSING: "{n} without the links the engine needs",
    codes.RDMA_MISSING: "{n} without RDMA to the others",
    codes.NO_COMMON_ENGINE: "{n} without an engine in common with enough others",
    codes.NO_ROUTABLE_ADDRESS: "{n} without a routable address",
    codes.LINKS_UNSUPPORTED: "{n} that may only work alone",
}
"""In the order the summary names them, and in which one becomes the code of the whole refusal."""
_LINK_CODES: Final = (codes.LINKS_UNKNOWN, codes.LINK_MISSING)
_SHARED_CODES: Final = (
    codes.RDMA_MISSING,
    codes.NO_COMMON_ENGINE,
    codes.NO_ROUTABLE_ADDRESS,
    codes.NO_FREE_PORT,
)
"""Reasons of a set that are those of its nodes."""
_NAMED: Final = 5
"""Most nodes a summary lists by name."""
_SET_MESSAGES: Final = {
    codes.ENGINE_CANNOT_SPAN: "its engines ({engines}) run on one machine only",
    codes.LINKS_UNSUPPORTED: codes.MEANINGS[codes.LINKS_UNSUPPORTED],
    codes.NO_COMMON_ENGINE: "no {width} nodes share a backend that can span machines",
    codes.LINK_MISSING: "no set of {widths} nodes is linked as the engine needs",
    codes.LINKS_UNKNOWN: "links between the nodes have not been observed yet",
    codes.NO_ROUTABLE_ADDRESS: "donors have only link-local or loopback addresses; a routable one is needed",
    codes.RDMA_MISSING: "no set of {widths} nodes has RDMA links between every two of them",
    codes.META_NOT_APPLICABLE: "instance meta {meta} does not go with its engines ({engines})",
    codes.TENSOR_UNSUPPORTED: "the card does not support tensor sharding",
    codes.TENSOR_INDIVISIBLE: (
        "hidden size {hidden}, {heads} heads and {kv_heads} KV heads do not divide by any usable width"
    ),
    codes.TENSOR_OVER_RPC: "llama.cpp RPC is pipeline only",
    codes.TOO_FEW_LAYERS: "{layers} cannot be cut over {width} ranks",
    codes.SPLIT_LIMITED: "the card lets no rank start after layer {latest_start}, too early for {width} ranks",
    codes.CONTEXT_TOO_LARGE: "its engines serve a smaller window than {context} tokens",
    codes.MEMORY_SHORT: "no set of {widths} linked nodes holds it{limit}",
    codes.NO_FREE_PORT: "no set of {widths} nodes that holds it has a port of 24000..31999 free on all of them",
}


def node_refusals(
    work: Workspace, request: PlanRequest, found: Found, *, others: bool = True
) -> tuple[NodeRefusal, ...]:
    """Why each node that is in no plan is out, by node id; with ``others`` also those that would have done."""
    used = {node.node_id for candidate, _ in found.ranked for node in candidate.members}
    refusals: list[NodeRefusal] = []
    for_sets = sets_only(request) and found.request_code is None
    messages: dict[str, str] = {}
    for node in work.nodes:
        if node.node_id in used:
            continue
        gated = found.gated.get(node.node_id)
        refused = found.refused.get(node.node_id)
        if gated is not None:
            if gated == codes.ENGINE_MISSING and found.request_code == codes.BACKEND_NOT_ACCEPTED:
                gated = found.request_code  # whatever engines the node has
            refusals.append(gate_refusal(work, node, gated, request))
        elif refused is not None:
            refusals.append(node_refusal(node, refused))
        else:
            # It passed every filter of its own.
            code = _unfit_for_sets(work, request, found, node) if for_sets else None
            if code is not None:
                if code not in messages:
                    messages[code] = set_message(work, request, code)
                refusals.append(_told(work, node, code, f": {messages[code]}"))
            elif others:
                refusals.append(
                    _told(work, node, codes.NODE_NOT_CHOSEN, " would do; others were ranked first")
                )
    return tuple(refusals)


def _told(work: Workspace, node: NodeFacts, code: str, why: str) -> NodeRefusal:
    """A refusal without arithmetic; the shapes of a preview share it."""
    key = (node.node_id, code, why)
    found = work.told.get(key)
    if found is None:
        found = work.told[key] = NodeRefusal(node.node_id, node.name, code, node.name + why)
    return found


def _unfit_for_sets(work: Workspace, request: PlanRequest, found: Found, node: NodeFacts) -> str | None:
    tags = work.tags(node, request.backend)
    if not backends.any_spans(tags):
        return codes.ENGINE_CANNOT_SPAN
    if not work.links.mutual.get(node.node_id) and not work.links.reaches.get(node.node_id):
        return codes.LINK_MISSING if work.snapshot.links_supported else codes.LINKS_UNSUPPORTED
    why = found.set_refusal.code if found.set_refusal is not None and not found.ranked else None
    return why if why in _SHARED_CODES else None


def explain(work: Workspace, request: PlanRequest, found: Found) -> PlanResult:
    """The refusal of a search that found nothing."""
    waiting = () if found.request_code is not None else unobserved(work, request, found)
    _fold_set_refusal(work, request, found)
    lonely = TagRefusal(codes.LINKS_UNKNOWN, "", missing=("links",))
    for node in waiting:
        own = found.refused.setdefault(node.node_id, lonely)
        if own is not lonely:
            found.refused[node.node_id] = replace(own, missing=tuple(dict.fromkeys((*own.missing, "links"))))
    nodes = node_refusals(work, request, found, others=False)
    code = _code(work, request, found, nodes, waiting)
    message = _message(work, request, found, code, nodes, waiting)
    return PlanResult((), Refusal(code, codes.category(code), message, nodes), nodes)


def _fold_set_refusal(work: Workspace, request: PlanRequest, found: Found) -> None:
    """Tell members of the nearest set what their own part lacks, where they have no reason of their own."""
    refusal = found.set_refusal
    if refusal is None:
        return
    if refusal.code in _LINK_CODES and sets_only(request):
        missing = refusal.missing
        for node_id in refusal.node_ids:
            found.refused.setdefault(node_id, TagRefusal(refusal.code, "", missing=missing))
    if refusal.shortage is None:
        return
    for index, (node_id, shortage) in enumerate(zip(refusal.node_ids, refusal.shortage.members, strict=True)):
        node, tag = work.node_by_id[node_id], refusal.shortage.arrangement.tag_of(index)
        missing = work.pools(node, tag).missing
        if missing:
            found.refused[node_id] = TagRefusal(codes.MEMORY_UNKNOWN, tag, missing=missing)
        elif shortage is not None:
            found.refused.setdefault(node_id, short_of_memory(work, node, tag, shortage))


def _code(
    work: Workspace,
    request: PlanRequest,
    found: Found,
    nodes: Sequence[NodeRefusal],
    waiting: Sequence[NodeFacts],
) -> str:
    if found.request_code is not None:
        return found.request_code
    set_code = found.set_refusal.code if found.set_refusal is not None else None
    if sets_only(request) and set_code in PERMANENT_SET_CODES:
        return set_code
    pending_codes = (codes.MEMORY_UNKNOWN, codes.ENGINES_UNKNOWN, codes.ENGINE_BUILD_UNKNOWN)
    concerned: list[NodeRefusal] = []
    if any(each.code in pending_codes for each in nodes):
        matters = may_matter(work, request, found)
        concerned = [refusal for refusal in nodes if matters(work.node_by_id[refusal.node_id])]
    by_code = {refusal.code for refusal in concerned}
    for pending in pending_codes:
        if pending in by_code and _pending_counts(request, concerned, pending):
            return pending
    if sets_only(request):
        return set_code or codes.NO_COMMON_ENGINE
    if waiting:
        return codes.LINKS_UNKNOWN
    if wants_links(work, request):
        return codes.LINKS_UNSUPPORTED
    if request.required_node_ids:
        required = [refusal.code for refusal in nodes if refusal.node_id in request.required_node_ids]
        return _refusing(required) or codes.REQUIRED_NODE_UNFIT
    return _refusing([refusal.code for refusal in nodes]) or codes.NO_COMMON_ENGINE


def _refusing(found: Sequence[str]) -> str | None:
    """The code that leads, of those that are a no; nodes whose missing facts could not help are not asked."""
    known = [code for code in found if code not in codes.PENDING_CODES]
    return next((code for code in _PHRASES if code in known), known[0] if known else None)


def _pending_counts(request: PlanRequest, nodes: Sequence[NodeRefusal], code: str) -> bool:
    """Whether the missing fact is on a node that may matter to this request."""
    required = request.required_node_ids
    if not required:
        return True
    out = {refusal.node_id for refusal in nodes if refusal.code not in codes.PENDING_CODES}
    single = len(required) == 1 and request.min_nodes <= 1
    concerned = {refusal.node_id for refusal in nodes if refusal.code == code}
    return bool(concerned & required) if single else not (out & required - concerned)


def _message(
    work: Workspace,
    request: PlanRequest,
    found: Found,
    code: str,
    nodes: Sequence[NodeRefusal],
    waiting: Sequence[NodeFacts],
) -> str:
    if found.request_code is not None:
        return _request_message(work, request, code)
    total = len(work.nodes)
    summary = ", ".join(_groups(nodes))
    set_refusal = found.set_refusal
    reasons = [] if set_refusal is None else [set_message(work, request, set_refusal.code)]
    if waiting:
        names = ", ".join(node.name for node in waiting[:_NAMED])
        more = f" and {len(waiting) - _NAMED} more" if len(waiting) > _NAMED else ""
        reasons = [] if set_refusal is None or set_refusal.code == codes.LINKS_UNKNOWN else reasons
        reasons.append(f"links of {names}{more} have not been observed yet")
    why = "; ".join(reasons)
    if sets_only(request):
        narrowest, widest = widths(work, request)
        width = f"{narrowest} or more" if widest > narrowest else str(narrowest)
        return f"no {width} of {total} nodes can run this together: {'; '.join(filter(None, (why, summary)))}"
    together = f"; together: {why}" if why and total > 1 else ""
    return f"0/{total} nodes can run this: {summary}{together}"


def _groups(nodes: Sequence[NodeRefusal]) -> list[str]:
    by_code: dict[str, list[NodeRefusal]] = {}
    for refusal in nodes:
        by_code.setdefault(refusal.code, []).append(refusal)
    texts: list[str] = []
    order = [*_PHRASES, *sorted(by_code.keys() - _PHRASES.keys())]
    for code in order:
        group = by_code.get(code)
        if group is None:
            continue
        phrase = _PHRASES.get(code, f"{{n}} refused ({code})").format(
            n=_count(code, len(group)), s="s" if len(group) == 1 else ""
        )
        short = [
            (refusal.short_by_bytes, refusal.node_name)
            for refusal in group
            if refusal.short_by_bytes is not None
        ]
        if short:
            size, name = min(short)
            phrase += f" (least short: {name} by {gib(size)})"
        facts = [
            f"{refusal.node_name}: {', '.join(refusal.missing_facts)}"
            for refusal in group
            if refusal.missing_facts and code in codes.PENDING_CODES
        ]
        if facts:
            shown = "; ".join(facts[:3]) + (f"; and {len(facts) - 3} more" if len(facts) > 3 else "")
            phrase += f" ({shown})"
        texts.append(phrase)
    return texts


def _count(code: str, number: int) -> str:
    if code in (codes.MEMORY_UNKNOWN, codes.ENGINES_UNKNOWN, codes.ENGINE_BUILD_UNKNOWN):
        return f"{number} {'has' if number == 1 else 'have'}"
    return str(number)


def set_message(work: Workspace, request: PlanRequest, code: str) -> str:
    """Why no set of nodes works, in words."""
    card = work.card
    narrowest, widest = widths(work, request)
    limited = request.max_nodes is None and widest < spanning_nodes(work, request)
    return _SET_MESSAGES.get(code, codes.MEANINGS.get(code, code)).format(
        engines=", ".join(dict.fromkeys(map(backends.engine_of, backends.accepted_backends(card)))),
        width=narrowest,
        widths=f"{narrowest} to {widest}" if widest > narrowest else str(narrowest),
        limit="; wider ones are tried only where min_nodes asks for them" if limited else "",
        meta=request.meta,
        hidden=card.hidden_size,
        heads=card.num_attention_heads if card.num_attention_heads is not None else "unknown",
        kv_heads=card.num_key_value_heads if card.num_key_value_heads is not None else "unknown",
        layers=f"{card.n_layers} layer{'' if card.n_layers == 1 else 's'}",
        latest_start=card.placement.max_pipeline_split_layer,
        context=request.context_tokens,
    )


def widths(work: Workspace, request: PlanRequest) -> tuple[int, int]:
    """The fewest and the most nodes of the sets that are tried."""
    narrowest = max(2, request.min_nodes, len(request.required_node_ids))
    most = request.max_nodes or max(WIDEST, narrowest)
    return narrowest, max(narrowest, min(spanning_nodes(work, request), most))


def _request_message(work: Workspace, request: PlanRequest, code: str) -> str:
    total = len(work.nodes)
    match code:
        case codes.NO_NODES:
            return "0/0 nodes can run this: the fleet has no nodes"
        case codes.CONTEXT_NOT_POSITIVE:
            return f"context_tokens is {request.context_tokens}; it must be positive"
        case codes.CONTEXT_OUT_OF_RANGE:
            return (
                f"context_tokens is {request.context_tokens}; accepted are {memory.MIN_CONTEXT_TOKENS} to "
                f"{memory.MAX_CONTEXT_TOKENS}"
            )
        case codes.WEIGHTS_UNKNOWN:
            return f"{work.card.model_id}: {codes.MEANINGS[code]}; add its storageSize to the card"
        case codes.CONTEXT_TOO_LARGE:
            return (
                f"context_tokens is {request.context_tokens}; the card allows at most {card_limit(work.card)}"
            )
        case codes.REQUIRED_NODE_UNKNOWN:
            unknown = ", ".join(sorted(request.required_node_ids - work.node_by_id.keys()))
            return f"required node {unknown} is not in the fleet"
        case codes.REQUIRED_NODE_EXCLUDED:
            both = ", ".join(sorted(request.required_node_ids & request.excluded_node_ids))
            return f"node {both} is both required and excluded"
        case codes.BACKEND_NOT_ACCEPTED:
            return f"backend is {request.backend}; the card accepts {', '.join(backends.accepted_backends(work.card))}"
        case codes.NODE_BOUNDS_CONFLICT:
            least = max(request.min_nodes, len(request.required_node_ids))
            return f"max_nodes is {request.max_nodes}; at least {least} {'is' if least == 1 else 'are'} asked for"
        case codes.META_NOT_APPLICABLE:
            return f"{request.meta} is for several nodes and none together would do; one alone is {InstanceMeta.RING}"
        case codes.TOO_FEW_NODES:
            return (
                f"min_nodes is {request.min_nodes}, but the fleet has {total} node{'s' if total != 1 else ''}"
            )
        case codes.ALL_NODES_EXCLUDED:
            left = sum(node_id not in request.excluded_node_ids for node_id in work.node_by_id)
            return f"the exclusions leave {left} of {total} nodes; {max(1, request.min_nodes)} needed"
        case _:
            return codes.MEANINGS[code]
