"""Nodes as people name them: by name, id, or the beginning of an id."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from wharfinger.cli.output import CliError, Exit


def chosen_nodes(option: str, wanted: Sequence[str], names: Mapping[str, str]) -> tuple[str, ...]:
    """Ids of the nodes an option names.

    Args:
        option: for the error, e.g. ``--exclude``.
        names: names of the fleet's nodes by id.

    Raises:
        CliError: a node that is not in the fleet, or a name of several; nothing may run where it was excluded.
    """
    return tuple(chosen_node(option, each, names, Exit.USAGE) for each in wanted)


def chosen_node(option: str, wanted: str, names: Mapping[str, str], unknown: Exit) -> str:
    """Id of the one node that has this id or name, or whose made-up id begins like this.

    Args:
        unknown: the exit code when there is none.

    Raises:
        CliError: no such node, or several.
    """
    if wanted in names:
        return wanted
    found = [node_id for node_id, name in names.items() if name == wanted]
    if not found and wanted:
        # A described node's id is its name; lab-1 must not mean lab-10 there.
        found = [node_id for node_id, name in names.items() if node_id != name and node_id.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    if found:
        raise CliError(
            f"{option} {wanted!r} means {len(found)} nodes; give one of the ids {', '.join(sorted(found))}",
            Exit.USAGE,
        )
    raise CliError(f"{option} {wanted!r}: no such node in this fleet; {_closest(wanted, names)}", unknown)


def _closest(wanted: str, names: Mapping[str, str]) -> str:
    known = sorted({*names.values()})
    if not known:
        return "it has none"
    close = difflib.get_close_matches(wanted, {*known, *names}, n=1, cutoff=0.5)
    if close:
        return f"the closest is {close[0]}"
    if len(known) == 1:
        return f"there is only {known[0]}"
    shown = ", ".join(known[:8])
    return f"there are {shown}{f' and {len(known) - 8} more' if len(known) > 8 else ''}"
