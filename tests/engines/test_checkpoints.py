"""The engine keeps exactly as many context checkpoints as placement charges memory for."""

from wharfinger.engines import llama_cpp as engine
from wharfinger.placement.memory import llama_cpp as rules


def test_the_engine_keeps_what_placement_charges() -> None:
    assert engine._CONTEXT_CHECKPOINTS == rules.CHECKPOINTS
