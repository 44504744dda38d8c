"""Asks for a stream where the client wants one document, and puts the document together again.

Some engines look at a client's connection only when they have something to write: llama.cpp's server looks once a
second while it works on an answer that is not streamed, and not at all while another request gets tokens
(``recv_with_timeout`` of its response queue; measured 1.0 to 1.2 s alone, the whole answer beside a second stream). Of
a stream it notices at the next token that nobody reads it. So their documents are fetched as streams: those that are
text and nothing else. With tools and with log probabilities its streams differ from its documents
(:attr:`~wharfinger.routing.body.Peek.plain`).

One difference remains: of an answer that its token limit cut off, a stream lacks an end that might have become a stop
text (``"\\n"`` of a ``"\\n\\nQuestion"``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

COLLECTED_ROUTES = ("/v1/chat/completions", "/v1/completions")
TEXT_LIMIT_BYTES = 64 << 20
"""No model answers with that much text; what does is not held in memory without an end."""
CHOICES_LIMIT = 1024

_WISHES = b',"stream":true,"stream_options":{"include_usage":true},"return_progress":true}'
"""``return_progress`` is llama.cpp's: an event for each batch of the prompt, so that it looks up meanwhile too."""


class StreamFailed(Exception):
    """The endpoint ended its stream with an error."""

    def __init__(self, error: object) -> None:
        super().__init__("the endpoint's stream holds an error")
        self.body = orjson.dumps({"error": error})
        """What it said, as the body of a refusal."""
        code = error.get("code") if isinstance(error, dict) else None
        self.status: int = code if isinstance(code, int) and 400 <= code <= 599 else 500
        """Its HTTP status: the one it names, otherwise 500."""


def as_stream(body: bytes) -> bytes:
    """``body``, a valid JSON object with at least one field, with a stream asked for and every other byte kept.

    The wishes stand last, because of equal names the last one counts.
    """
    return body[: body.rindex(b"}")] + _WISHES


@dataclass(slots=True)
class _Choice:
    """One of the answers; its texts are joined at the end, so that each token costs the same."""

    finish_reason: str | None = None
    texts: dict[str, list[str]] = field(default_factory=dict)
    """Pieces of ``text``, or of the message's ``content``, ``reasoning_content`` and the like."""
    role: str | None = None


class Collector:
    """Puts the chunks of one stream together to the document that the endpoint would have sent."""

    def __init__(self) -> None:
        self._document: dict[str, Any] = {}
        self._choices: dict[int, _Choice] = {}
        self._text_bytes = 0
        self.answering = False
        """The prompt is done: something other than its progress has come."""

    def feed(self, events: bytes) -> bool:
        """Take whole events in; true when they end the stream.

        Raises:
            StreamFailed: one of them is an error.
            ValueError: one of them cannot be read, or there is too much of them.
        """
        for line in events.splitlines():
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                return True
            chunk = orjson.loads(data)
            try:
                self._add(chunk)
            except (AttributeError, KeyError, TypeError) as error:
                raise ValueError(f"a chunk of another shape: {type(error).__name__}") from None
        return False

    def document(self) -> bytes:
        """The whole answer as JSON."""
        choices = [_finished(index, self._choices[index]) for index in sorted(self._choices)]
        return orjson.dumps({**self._document, "choices": choices})

    def _add(self, chunk: dict[str, Any]) -> None:
        if chunk.get("error") is not None:
            raise StreamFailed(chunk["error"])
        if "prompt_progress" in chunk:
            return
        self.answering = True
        choices: list[dict[str, Any]] = chunk.pop("choices")
        # Of several prompts each ends with a usage of its own; in a document llama.cpp sends that of the first.
        if all(choice["index"] == 0 for choice in choices):
            chunk["object"] = chunk["object"].removesuffix(".chunk")
            self._document.update(chunk)
        for choice in choices:
            self._add_choice(choice)

    def _add_choice(self, piece: dict[str, Any]) -> None:
        index = piece["index"]
        if not isinstance(index, int) or not 0 <= index < CHOICES_LIMIT:
            raise ValueError("a choice that cannot be")
        choice = self._choices.setdefault(index, _Choice())
        choice.finish_reason = piece.get("finish_reason") or choice.finish_reason
        if "delta" in piece:
            delta = {"content": None, **(piece["delta"] or {})}
            choice.role = delta.pop("role", None) or choice.role or "assistant"
        else:
            delta = {"text": piece["text"]}
        for name, text in delta.items():
            pieces = choice.texts.setdefault(name, [])
            if text is not None:
                self._text_bytes += len(text.encode())
                pieces.append(text)
        if self._text_bytes > TEXT_LIMIT_BYTES:
            raise ValueError(f"more than {TEXT_LIMIT_BYTES} bytes of text")


def _finished(index: int, choice: _Choice) -> dict[str, Any]:
    texts = {name: "".join(pieces) for name, pieces in choice.texts.items()}
    ended = {"index": index, "finish_reason": choice.finish_reason}
    if choice.role is None:
        return {**ended, **texts, "logprobs": None}
    return {**ended, "message": {"role": choice.role, **texts}}
