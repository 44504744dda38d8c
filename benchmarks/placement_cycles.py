"""The published cycle-enumerating rule, made again from its description, to compare with.

All simple directed cycles of the link graph and every single node are listed, each is tested for memory by an even
split, and the shortest that fits wins. A preview asks this once per width for each of four shapes; one asking is
timed here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from math import comb, factorial

GIB = 1024**3


def simple_cycles(links: dict[int, list[int]]) -> Iterator[tuple[int, ...]]:
    """Every simple directed cycle once, from its smallest node on, and every node alone."""
    for start in sorted(links):
        yield (start,)
        path = [start]
        on_path = {start}
        choices = [iter(links[start])]
        while choices:
            for node in choices[-1]:
                if node > start and node not in on_path:
                    path.append(node)
                    on_path.add(node)
                    choices.append(iter(links[node]))
                    break
            else:
                if len(path) > 1 and start in links[path[-1]]:
                    yield tuple(path)
                on_path.discard(path.pop())
                choices.pop()


def place(links: dict[int, list[int]], free: dict[int, int], needed: int) -> tuple[int, ...] | None:
    """The rule: filter every cycle by memory, keep the shortest, take the one with most free memory."""
    fitting = [
        cycle for cycle in simple_cycles(links) if all(free[node] * len(cycle) >= needed for node in cycle)
    ]
    if not fitting:
        return None
    shortest = min(len(cycle) for cycle in fitting)
    return max(
        (c for c in fitting if len(c) == shortest), key=lambda cycle: sum(free[node] for node in cycle)
    )


def cycles_of_complete_graph(nodes: int) -> int:
    """Simple directed cycles of a fully linked graph, single nodes included: 24 for 4, 119,481,296 for 12."""
    return nodes + sum(comb(nodes, k) * factorial(k - 1) for k in range(2, nodes + 1))


def rule_seconds(nodes: int) -> float:
    """Time of one placement over fully linked nodes."""
    links = {node: [other for other in range(nodes) if other != node] for node in range(nodes)}
    free = {node: (16 + node) * GIB for node in range(nodes)}
    start = time.perf_counter()
    place(links, free, 40 * GIB)
    return time.perf_counter() - start
