from __future__ import annotations

from wharfinger.routing.targets import RouteTable, Target


def make(target_id: str, model: str = "m") -> Target:
    return Target(target_id, model, model, "http://127.0.0.1:1")


def table_of(*targets: Target) -> RouteTable:
    table = RouteTable()
    table.publish(targets)
    return table


def acquired(table: RouteTable, exclude: tuple[str, ...] = ()) -> str | None:
    found = table.acquire("m", exclude)
    return found.target_id if found else None


def test_the_least_loaded_target_is_picked() -> None:
    table = table_of(make("a"), make("b"))
    assert [acquired(table) for _ in range(4)] == ["a", "b", "a", "b"]
    table.release(make("b"))
    assert acquired(table) == "b"


def test_excluded_targets_are_not_picked() -> None:
    table = table_of(make("a"), make("b"))
    assert acquired(table, ("a",)) == "b"
    assert acquired(table, ("a", "b")) is None
    assert (table.in_flight("a"), table.in_flight("b")) == (0, 1)


def test_an_unknown_model_counts_nothing() -> None:
    table = table_of(make("a"))
    assert table.acquire("other") is None
    assert table.serving("other") == ()
    assert table.in_flight("a") == 0


def test_a_suspect_target_is_the_last_choice_until_the_next_publication() -> None:
    table = table_of(make("a"), make("b"))
    table.suspect(make("a"))
    assert [acquired(table) for _ in range(3)] == ["b", "b", "b"]
    table.publish([make("a"), make("b")])
    assert acquired(table) == "a"


def test_a_suspect_target_still_serves_when_it_is_the_only_one() -> None:
    table = table_of(make("a"))
    table.suspect(make("a"))
    assert acquired(table) == "a"


def test_counts_survive_a_publication_and_reach_zero() -> None:
    table = table_of(make("a"))
    held = table.acquire("m")
    assert held is not None
    assert table.publish([]) == 2
    assert (table.models(), table.in_flight("a")) == ((), 1)
    table.release(held)
    assert table.in_flight("a") == 0


def test_the_credential_is_not_in_the_repr() -> None:
    assert "sk-secret" not in repr(Target("a", "m", "m", "http://h", api_key="sk-secret"))
