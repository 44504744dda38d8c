"""``chat``: talk to a running model through the gateway, streamed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from wharfinger.cli.client import Client, path_of
from wharfinger.cli.model_names import same_but_for_case
from wharfinger.cli.output import CliError, say, styled

DEFAULT_MAX_TOKENS = 512

Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer and how fast it came."""

    text: str
    first_token_s: float
    """From sending the question to the first token."""
    tokens: int
    """As the endpoint counts them; the pieces that came where it does not say."""
    tokens_per_s: float | None
    """After the first token; ``None`` with fewer than two."""
    cut: bool
    """It reached its limit or the end of the window before the model was done."""


class AnswerInterrupted(KeyboardInterrupt):
    """Ctrl-C during an answer; ``text`` is what had come of it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


def ask(client: Client, model: str, messages: Messages, max_tokens: int) -> Answer:
    """Ask once and print the answer as it comes.

    Raises:
        CliError: the model does not run, or the stream broke.
        AnswerInterrupted: Ctrl-C.
    """
    started = time.monotonic()
    first: float | None = None
    pieces: list[str] = []
    cut = False
    counted: int | None = None
    try:
        for chunk in _chunks(client, model, messages, max_tokens):
            counted = (chunk.get("usage") or {}).get("completion_tokens", counted)
            for choice in chunk.get("choices", []):
                cut = cut or choice.get("finish_reason") == "length"
                piece = choice.get("delta", {}).get("content")
                if not piece:
                    continue
                first = first or time.monotonic()
                shown = piece if pieces else piece.lstrip()
                pieces.append(shown)
                sys.stdout.write(shown)
                sys.stdout.flush()
    except KeyboardInterrupt as interrupt:
        sys.stdout.write("\n")
        raise AnswerInterrupted("".join(pieces)) from interrupt
    sys.stdout.write("\n")
    ended = time.monotonic()
    if first is None:
        raise CliError(f"{model} answered nothing")
    tokens = len(pieces) if counted is None else counted
    rate = (tokens - 1) / (ended - first) if tokens > 1 and ended > first else None
    return Answer("".join(pieces), first - started, tokens, rate, cut)


def _chunks(client: Client, model: str, messages: Messages, max_tokens: int) -> Iterator[dict[str, Any]]:
    body = {"model": model, "messages": messages, "stream": True, "max_tokens": max_tokens}
    body["stream_options"] = {"include_usage": True}
    try:
        with client.stream("POST", "/v1/chat/completions", read_s=None, json=body) as response:
            for line in response.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    event = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        raise CliError(event["error"]["message"], document=event["error"])
                    yield event
    except httpx.TransportError as error:
        raise CliError(f"the stream broke ({type(error).__name__})") from error


def default_max_tokens(served: dict[str, Any]) -> int:
    """512 tokens, or half the model's window where that is less: the conversation needs room too.

    Args:
        served: the model as ``/v1/models`` describes it.
    """
    window = served.get("max_model_len")
    return min(DEFAULT_MAX_TOKENS, max(1, window // 2)) if window else DEFAULT_MAX_TOKENS


def run_chat(model: str, message: str | None, max_tokens: int | None) -> None:
    """One question, or a conversation until Ctrl-D.

    Raises:
        CliError: the model does not run, which is found out before anything is asked.
    """
    client = Client()
    running = [served["id"] for served in client.get("/v1/models")["data"]]
    model = same_but_for_case(model, running)
    served = client.get(f"/v1/models/{path_of(model, keep='/')}")
    limit = max_tokens or default_max_tokens(served)
    if message is not None:
        _report(ask(client, model, [{"role": "user", "content": message}], limit), limit)
        return
    say(f"talking to {model}; Ctrl-C ends an answer, Ctrl-D the conversation")
    history: Messages = []
    while True:
        try:
            question = input("> ").strip()
        except EOFError:
            return
        if question:
            history = _exchange(client, model, history, question, limit)


def _exchange(client: Client, model: str, history: Messages, question: str, limit: int) -> Messages:
    """Ask the next question; returns the conversation after it. An answer broken off early stays part of it."""
    asked = [*history, {"role": "user", "content": question}]
    try:
        answer = ask(client, model, asked, limit)
    except AnswerInterrupted as interrupt:
        say("interrupted")
        text = interrupt.text
    else:
        _report(answer, limit)
        text = answer.text
    return [*asked, {"role": "assistant", "content": text}] if text else history


def _report(answer: Answer, limit: int) -> None:
    """Say how fast an answer came and whether it is whole, on stderr."""
    if answer.cut:
        say(
            f"the answer was cut off: it reached {limit} tokens (--max-tokens) or the end of the model's window"
        )
    rate = "?" if answer.tokens_per_s is None else f"{answer.tokens_per_s:.0f}"
    figures = f"first token {answer.first_token_s * 1000:.0f} ms, {rate} tokens/s, {answer.tokens} tokens"
    say(styled((figures, "dim")))
