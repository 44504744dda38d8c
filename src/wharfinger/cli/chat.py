"""``chat``: talk to a running model through the gateway, streamed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from wharfinger.cli.client import Client
from wharfinger.cli.output import CliError, Exit, say


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer and how fast it came."""

    text: str
    first_token_s: float
    """From sending the question to the first token."""
    tokens: int
    tokens_per_s: float | None
    """After the first token; ``None`` with fewer than two."""


def ask(client: Client, model: str, messages: list[dict[str, str]], max_tokens: int | None = None) -> Answer:
    """Ask once and print the answer as it comes.

    Raises:
        CliError: the model does not run, or the stream broke.
    """
    started = time.monotonic()
    first: float | None = None
    pieces: list[str] = []
    for piece in _stream(client, model, messages, max_tokens):
        first = first or time.monotonic()
        shown = piece if pieces else piece.lstrip()
        pieces.append(shown)
        sys.stdout.write(shown)
        sys.stdout.flush()
    sys.stdout.write("\n")
    ended = time.monotonic()
    if first is None:
        raise CliError(f"{model} answered nothing")
    rate = (len(pieces) - 1) / (ended - first) if len(pieces) > 1 and ended > first else None
    return Answer("".join(pieces), first - started, len(pieces), rate)


def _stream(
    client: Client, model: str, messages: list[dict[str, str]], max_tokens: int | None
) -> Iterator[str]:
    body: dict[str, Any] = {"model": model, "messages": messages, "stream": True}
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    timeout = httpx.Timeout(30.0, read=None)
    try:
        with client.http.stream("POST", "/v1/chat/completions", json=body, timeout=timeout) as response:
            if response.status_code != 200:
                response.read()
                code = Exit.NOT_FOUND if response.status_code == 404 else Exit.FAILED
                raise CliError(response.json()["error"]["message"], code)
            for line in response.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    yield from _content(json.loads(line.removeprefix("data: ")))
    except httpx.ConnectError as error:
        raise CliError(
            f"no control plane answers at {client.url}. Start one with `wharf up`.", Exit.UNREACHABLE
        ) from error
    except httpx.TransportError as error:
        raise CliError(f"the stream broke ({type(error).__name__})") from error


def _content(event: dict[str, Any]) -> Iterator[str]:
    if "error" in event:
        raise CliError(event["error"]["message"])
    for choice in event.get("choices", []):
        piece = choice.get("delta", {}).get("content")
        if piece:
            yield piece


def run_chat(model: str, message: str | None) -> None:
    """One question, or a conversation until Ctrl-D."""
    client = Client()
    if message is not None:
        speed(ask(client, model, [{"role": "user", "content": message}]))
        return
    say(f"talking to {model}; Ctrl-D ends")
    history: list[dict[str, str]] = []
    while True:
        try:
            question = input("> ").strip()
        except EOFError:
            return
        if question:
            history.append({"role": "user", "content": question})
            answer = ask(client, model, history)
            history.append({"role": "assistant", "content": answer.text})
            speed(answer)


def speed(answer: Answer) -> None:
    """Say how fast an answer came, on stderr."""
    rate = "?" if answer.tokens_per_s is None else f"{answer.tokens_per_s:.0f}"
    say(f"[dim]first token {answer.first_token_s * 1000:.0f} ms, {rate} tokens/s, {answer.tokens} tokens[/]")
