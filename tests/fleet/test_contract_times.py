"""The times of the contract, by the constants they come from; ``benchmarks/start.py`` measures what they come to."""

from __future__ import annotations

from wharfinger.fleet import supervisor
from wharfinger.routing.watch import LISTEN_AFTER_S
from wharfinger.workflows.watch import POLL_S


def test_a_runners_death_is_seen_within_two_seconds() -> None:
    """Its log's end and then that of its status are waited for, with a look for strays between, until a report says
    that it ended; the next look of the watch reads that."""
    reported_s = supervisor._STRAY_GRACE_S + supervisor._STRAY_POLL_S + supervisor._STRAY_GRACE_S
    assert reported_s + POLL_S <= 2.0


def test_a_client_that_leaves_is_noticed_well_within_a_second() -> None:
    assert LISTEN_AFTER_S <= 0.1
