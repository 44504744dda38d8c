"""What engines refuse, in their various ways, reaches clients in OpenAI's one."""

from __future__ import annotations

import json

import openai
import pytest

from support.gateway import MESSAGES, MODEL, Serve, error, post, target
from support.upstream import DONE, Upstream, frame
from wharfinger.routing.refused import from_body

LLAMA_CPP_CONTEXT = {
    "code": 400,
    "message": "request (3001 tokens) exceeds the available context size (1024 tokens), try increasing it",
    "type": "exceed_context_size_error",
    "n_prompt_tokens": 3001,
    "n_ctx": 1024,
}
VLLM_CONTEXT = {
    "message": "This model's maximum context length is 1024 tokens. However, you requested 3001 tokens.",
    "type": "BadRequestError",
    "param": None,
    "code": 400,
}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (
            {"error": {"code": 400, "message": "Expected 'messages'", "type": "invalid_request_error"}},
            ("Expected 'messages'", "invalid_request_error", None, "upstream_status"),
        ),
        (
            {"error": {"code": "bad_image", "message": "no", "type": "t", "param": "messages[0]"}},
            ("no", "t", "messages[0]", "bad_image"),
        ),
        (
            {"error": {"code": "400", "message": "no"}},
            ("no", "invalid_request_error", None, "upstream_status"),
        ),
        ({"error": "in a word"}, ("in a word", "invalid_request_error", None, "upstream_status")),
        (
            {"object": "error", "message": "flat", "type": "BadRequestError", "param": None, "code": 400},
            ("flat", "BadRequestError", None, "upstream_status"),
        ),
        (
            {"error": LLAMA_CPP_CONTEXT},
            (
                f"context_length_exceeded: {LLAMA_CPP_CONTEXT['message']}",
                "invalid_request_error",
                None,
                "context_length_exceeded",
            ),
        ),
        (
            {"error": VLLM_CONTEXT},
            (
                f"context_length_exceeded: {VLLM_CONTEXT['message']}",
                "invalid_request_error",
                None,
                "context_length_exceeded",
            ),
        ),
        (
            {"detail": [{"loc": ["body"]}]},
            (
                'The endpoint of \'m\' answered 400: {"detail": [{"loc": ["body"]}]}',
                "upstream_error",
                None,
                "upstream_status",
            ),
        ),
    ],
    ids=[
        "llama.cpp",
        "own code",
        "number as text",
        "a word",
        "flat",
        "llama.cpp context",
        "vllm",
        "no words",
    ],
)
def test_the_shape_is_openais(document: object, expected: tuple[str, str, str | None, str]) -> None:
    refused = from_body("m", 400, json.dumps(document).encode(), [])
    assert refused.status == 400
    assert (refused.message, refused.error_type, refused.param, refused.code) == expected


def test_a_context_refused_as_a_server_error_is_the_requests_fault() -> None:
    refused = from_body("m", 500, json.dumps({"error": LLAMA_CPP_CONTEXT}).encode(), [])
    assert (refused.status, refused.code) == (400, "context_length_exceeded")


@pytest.mark.parametrize("collects", [False, True])
async def test_openais_client_can_tell_that_the_context_was_exceeded(
    serve: Serve, upstream: Upstream, collects: bool
) -> None:
    upstream.behaviour = "refusing"
    upstream.answer_body = json.dumps({"error": LLAMA_CPP_CONTEXT}).encode()
    served = serve(target(upstream.url, collects=collects))
    with pytest.raises(openai.BadRequestError) as caught:
        await served.client().chat.completions.create(model=MODEL, messages=MESSAGES)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", None)
    record = (await served.recorded())[0]
    assert (record.status, record.failure) == (400, "upstream_status")
    assert served.metric("upstream_errors_total", model=MODEL, reason="upstream_status") is None


@pytest.mark.parametrize(
    ("event", "status", "code", "counted"),
    [
        (LLAMA_CPP_CONTEXT, 400, "context_length_exceeded", None),
        ({"code": 503, "message": "Loading model", "type": "unavailable_error"}, 503, "upstream_status", 1),
    ],
)
async def test_an_error_within_a_collected_stream_has_the_same_shape(
    serve: Serve, upstream: Upstream, event: dict[str, object], status: int, code: str, counted: int | None
) -> None:
    upstream.behaviour = "stream"
    upstream.stream_frames = [frame(b"data: " + json.dumps({"error": event}).encode() + b"\n\n"), frame(DONE)]
    served = serve(target(upstream.url, collects=True))
    answer = await post(served.url, {"model": MODEL, "messages": MESSAGES})
    assert (answer.status_code, error(answer)["code"]) == (status, code)
    assert str(event["message"]) in error(answer)["message"]
    assert answer.headers["content-type"] == "application/json"
    assert served.metric("upstream_errors_total", model=MODEL, reason="upstream_status") == counted
