"""The delays between attempts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wharfinger.operations.backoff import Backoff


@pytest.mark.parametrize(
    ("failures", "delay_s"), [(0, 1.0), (1, 1.0), (2, 2.0), (3, 4.0), (6, 32.0), (7, 60.0), (1000, 60.0)]
)
def test_delays_double_up_to_the_cap(failures: int, delay_s: float) -> None:
    assert Backoff(jitter=lambda: 1.0).delay_s(failures) == delay_s


def test_the_jitter_is_applied() -> None:
    assert Backoff(jitter=lambda: 1.125).delay_s(2) == 2.25


def test_above_the_cap_the_jitter_folds_back() -> None:
    assert Backoff(jitter=lambda: 1.25).delay_s(9) == 45.0


@given(st.integers(1, 10_000))
def test_a_delay_is_within_a_quarter_of_its_value_and_under_the_cap(failures: int) -> None:
    plain = Backoff(jitter=lambda: 1.0).delay_s(failures)
    assert 0.75 * plain <= Backoff().delay_s(failures) <= min(60.0, 1.25 * plain)
