"""Placement is pure: the parts of the standard library it may use, and none that touch a file, a clock or chance.

``make imports`` keeps the rest of the project and other libraries out of it, also over a detour.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import wharfinger.placement

ROOM = Path(wharfinger.placement.__file__).parent
ALLOWED_MODULES = {
    "__future__",
    "bisect",
    "collections",
    "abc",
    "collections.abc",
    "dataclasses",
    "difflib",  # compares texts
    "enum",
    "functools",
    "heapq",
    "ipaddress",  # parses addresses, opens nothing
    "itertools",
    "math",
    "operator",
    "re",
    "types",
    "typing",
    "wharfinger.catalog.card",
    "wharfinger.sizes",  # parses texts
}
IMPURE_BUILTINS = {
    "__import__",
    "breakpoint",
    "compile",
    "eval",
    "exec",
    "hash",  # of a text differs from process to process
    "id",
    "input",
    "open",
    "print",
}


def impurities(source: str) -> list[str]:
    """What a module of the room may not do, as ``line: what``."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [f"{node.lineno}: {alias.name}" for alias in node.names if not _allowed(alias.name)]
        elif isinstance(node, ast.ImportFrom):
            module = "a relative import" if node.level or node.module is None else node.module
            found += [] if _allowed(module) else [f"{node.lineno}: {module}"]
        elif isinstance(node, ast.Name) and node.id in IMPURE_BUILTINS:
            found.append(f"{node.lineno}: {node.id}")
    return found


def _allowed(module: str) -> bool:
    return module in ALLOWED_MODULES or f"{module}.".startswith("wharfinger.placement.")


@pytest.mark.parametrize("path", sorted(ROOM.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOM)))
def test_a_module_of_placement_is_pure(path: Path) -> None:
    assert impurities(path.read_text()) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import os, re, time", ["1: os", "1: time"]),
        ("def now():\n    from datetime import datetime", ["2: datetime"]),
        ("from random import shuffle", ["1: random"]),
        ("from pathlib import Path", ["1: pathlib"]),
        ("import socket", ["1: socket"]),
        ("import subprocess", ["1: subprocess"]),
        ("import asyncio", ["1: asyncio"]),
        ("import urllib.request", ["1: urllib.request"]),
        ("from wharfinger.catalog.gguf import read_gguf", ["1: wharfinger.catalog.gguf"]),
        ("from wharfinger.settings import Settings", ["1: wharfinger.settings"]),
        ("from wharfinger import settings", ["1: wharfinger"]),
        ("from .. import settings", ["1: a relative import"]),
        ("size = len(open('model.gguf').read())", ["1: open"]),
        ("order = sorted(names, key=hash)", ["1: hash"]),
        ("__import__('os')", ["1: __import__"]),
        (
            "from wharfinger.placement.types import NodeFacts\nfrom wharfinger.catalog.card import ModelCard",
            [],
        ),
    ],
)
def test_what_is_not_pure_is_seen(source: str, found: list[str]) -> None:
    assert impurities(source) == found
