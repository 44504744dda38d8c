from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wharfinger.routing.body import Peek, peek, replace_model
from wharfinger.routing.errors import GatewayError

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
key = st.one_of(text, st.sampled_from(["model", '"model"', "mod\\u0065l", "x:model", "{", "}]"]))
leaf = st.one_of(text, key, st.integers(-(10**30), 10**30), st.booleans(), st.none(), st.just(1.0e-7))
tree = st.recursive(
    leaf,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(key, inner, max_size=4)),
    max_leaves=12,
)
space = st.text(" \t\r\n", max_size=3)
quoted = st.one_of(
    text.filter(bool).map(json.dumps), text.filter(bool).map(lambda s: json.dumps(s, ensure_ascii=False))
)
model_key = st.sampled_from(['"model"', '"mod\\u0065l"', '"\\u006dodel"'])


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, bytes, bytes]:
    """What stands before the model's value, the value, and what stands behind it."""
    ascii_only = draw(st.booleans())

    def members(extra: dict[str, Any]) -> list[str]:
        return [
            f"{draw(space)}{json.dumps(k, ensure_ascii=ascii_only)}{draw(space)}:{draw(space)}"
            f"{json.dumps(v, ensure_ascii=ascii_only)}{draw(space)}"
            for k, v in extra.items()
            if k != "model"
        ]

    others = members(draw(st.dictionaries(key, tree, max_size=5)))
    split = draw(st.integers(0, len(others)))
    before = "".join(member + "," for member in others[:split])
    after = "".join("," + member for member in others[split:])
    head = f"{draw(space)}{{{before}{draw(space)}{draw(model_key)}{draw(space)}:{draw(space)}"
    return head.encode(), draw(quoted).encode(), f"{draw(space)}{after}}}{draw(space)}".encode()


@given(bodies(), text.filter(bool))
def test_only_the_models_value_changes(parts: tuple[bytes, bytes, bytes], new: str) -> None:
    head, value, tail = parts
    assert peek(head + value + tail, "messages").model == json.loads(value)
    renamed = replace_model(head + value + tail, new)
    assert renamed.startswith(head)
    assert renamed.endswith(tail)
    assert json.loads(renamed[len(head) : len(renamed) - len(tail)]) == new


def test_big_integers_key_order_and_spaces_survive() -> None:
    body = b'{ "seed":123456789012345678901234567890 ,"model" : "small","z":1.10,"a":{"model":"inner"},"t":"model"}'
    assert replace_model(body, "large") == body.replace(b'"small"', b'"large"')


def test_a_model_that_stands_twice_is_refused() -> None:
    with pytest.raises(GatewayError, match="appears twice") as caught:
        replace_model(b'{"model":1,"model":"x"}', "y")
    assert (caught.value.status, caught.value.param) == (400, "model")


@pytest.mark.parametrize(
    ("body", "param", "code", "message"),
    [
        (b"", None, "invalid_json", "not valid JSON"),
        (b'{"model":', None, "invalid_json", "not valid JSON"),
        (b'{"model":"\xff"}', None, "invalid_json", "not valid JSON"),
        (b"[" * 5000 + b"]" * 5000, None, "invalid_json", "not valid JSON"),
        (b"[1]", None, "invalid_json", "must be a JSON object, not an array"),
        (b"{}", "model", "missing_required_parameter", "'model' is missing"),
        (b'{"model":null}', "model", "missing_required_parameter", "'model' is missing"),
        (b'{"model":7}', "model", "invalid_type", "not a number"),
        (b'{"model":""}', "model", "invalid_type", "not an empty string"),
        (b'{"model":["m"]}', "model", "invalid_type", "not an array"),
        (b'{"model":"m","stream":"yes"}', "stream", "invalid_type", "not a string"),
        (b'{"model":"m","stream":1}', "stream", "invalid_type", "not a number"),
        (b'{"model":"m","max_tokens":"9"}', "max_tokens", "invalid_type", "not a string"),
        (b'{"model":"m","max_tokens":true}', "max_tokens", "invalid_type", "not a boolean"),
        (
            b'{"model":"m","max_completion_tokens":1.5}',
            "max_completion_tokens",
            "invalid_type",
            "not a number",
        ),
        (b'{"model":"m","max_tokens":0}', "max_tokens", "invalid_value", "at least 1, not 0"),
        (b'{"model":"m","max_tokens":-1}', "max_tokens", "invalid_value", "at least 1, not -1"),
        (
            b'{"model":"m","max_tokens":-1,"max_completion_tokens":5}',
            "max_tokens",
            "invalid_value",
            "at least 1, not -1",
        ),
        (b'{"model":"m","prompt":""}', "prompt", "invalid_value", "'prompt' is empty"),
        (b'{"model":"m","prompt":[]}', "prompt", "invalid_value", "'prompt' is empty"),
        (b'{"model":"m","prompt":["a",""]}', "prompt", "invalid_value", "'prompt' is empty"),
        (b'{"model":"m","prompt":[[1],[]]}', "prompt", "invalid_value", "'prompt' is empty"),
    ],
)
def test_a_bad_body_is_refused_by_name(body: bytes, param: str | None, code: str, message: str) -> None:
    with pytest.raises(GatewayError, match=message) as caught:
        peek(body, "prompt")
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, code, param)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model":"m"}', Peek("m", False, None, "max_tokens")),
        (b'{"model":"m","stream":null,"max_tokens":5}', Peek("m", False, 5, "max_tokens")),
        (
            b'{"model":"m","stream":true,"max_tokens":5,"max_completion_tokens":6}',
            Peek("m", True, 6, "max_completion_tokens"),
        ),
        (b'{"model":"m","messages":[{"content":""}]}', Peek("m", False, None, "max_tokens")),
        (b'{"model":"m","messages":null,"prompt":""}', Peek("m", False, None, "max_tokens")),
    ],
)
def test_peek_reads_what_it_routes_by(body: bytes, expected: Peek) -> None:
    assert peek(body, "messages") == expected
