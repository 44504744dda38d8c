"""Asks for a stream where the client wants one document, and puts the document together again.

Some engines look at a client's connection only when they have something to write: llama.cpp's server looks once a
second while it works on an answer that is not streamed, and not at all while another request gets tokens
(``recv_with_timeout`` of its response queue; measured 1.0 to 1.2 s alone, the whole answer beside a second stream). Of
a stream it notices at the next token that nobody reads it. So their documents are fetched as streams. One thing
differs: of an answer that its token limit cut off, a stream lacks an end that might have become a stop text (``"\\n"``
of a ``"\\n\\nQuestion"``).
"""

from __future__ import annotations

from typing import Any

import orjson

COLLECTED_ROUTES = ("/v1/chat/completions", "/v1/completions")

_WISHES = b',"stream":true,"stream_options":{"include_usage":true},"return_progress":true}'
"""``return_progress`` is llama.cpp's: an event for each batch of the prompt, so that it looks up meanwhile too."""


class StreamFailed(Exception):
    """The endpoint ended its stream with an error; ``error`` is what it said."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(str(error.get("message", error))[:500])
        self.error = error

    @property
    def status(self) -> int:
        """Its HTTP status: the one it names, otherwise 500."""
        code = self.error.get("code")
        return code if isinstance(code, int) and 400 <= code <= 599 else 500


def as_stream(body: bytes) -> bytes:
    """``body``, a valid JSON object with at least one field, with a stream asked for and every other byte kept.

    The wishes stand last, because of equal names the last one counts.
    """
    return body[: body.rindex(b"}")] + _WISHES


class Collector:
    """Puts the chunks of one stream together to the document that the endpoint would have sent."""

    def __init__(self) -> None:
        self._document: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}

    def feed(self, events: bytes) -> bool:
        """Take whole events in; true when they end the stream.

        Raises:
            StreamFailed: one of them is an error.
            ValueError: one of them is not JSON.
        """
        for line in events.splitlines():
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                return True
            self._add(orjson.loads(data))
        return False

    def document(self) -> bytes:
        """The whole answer as JSON."""
        choices = [self._choices[index] for index in sorted(self._choices)]
        return orjson.dumps({**self._document, "choices": [_finished(choice) for choice in choices]})

    def _add(self, chunk: dict[str, Any]) -> None:
        error = chunk.get("error")
        if error is not None:
            raise StreamFailed(error if isinstance(error, dict) else {"message": str(error)})
        if "prompt_progress" in chunk:
            return
        choices: list[dict[str, Any]] = chunk.pop("choices", [])
        # Of several prompts each ends with a usage of its own; in a document llama.cpp sends that of the first.
        if all(choice["index"] == 0 for choice in choices):
            chunk["object"] = chunk.get("object", "").removesuffix(".chunk")
            self._document.update(chunk)
        for choice in choices:
            _merge(self._choices.setdefault(choice["index"], {"index": choice["index"]}), choice)


def _merge(whole: dict[str, Any], piece: dict[str, Any]) -> None:
    """Add one chunk's choice to what came before of the same index."""
    whole["finish_reason"] = piece.get("finish_reason") or whole.get("finish_reason")
    if "text" in piece:
        whole["text"] = whole.get("text", "") + piece["text"]
        whole.setdefault("logprobs", None)
    if "delta" in piece:
        _merge_message(whole.setdefault("message", {"role": "assistant"}), piece["delta"])
    logprobs = piece.get("logprobs")
    if logprobs:
        whole["logprobs"] = whole.get("logprobs") or {}
        for name, values in logprobs.items():
            whole["logprobs"].setdefault(name, []).extend(values or [])


def _merge_message(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        if value is None:
            continue
        if name == "tool_calls":
            calls = message.setdefault("tool_calls", [])
            for call in value:
                _merge_call(calls, call)
        elif name == "role":
            message["role"] = value
        else:  # content, reasoning_content
            message[name] = message.get(name, "") + value


def _merge_call(calls: list[dict[str, Any]], piece: dict[str, Any]) -> None:
    """A call comes as its name and id first, then its arguments in pieces; ``index`` says which call it is."""
    index = piece["index"]
    while len(calls) <= index:
        calls.append({"type": "function", "function": {"name": "", "arguments": ""}})
    call = calls[index]
    call.update({name: value for name, value in piece.items() if name not in ("index", "function")})
    for name, value in piece.get("function", {}).items():
        call["function"][name] += value


def _finished(choice: dict[str, Any]) -> dict[str, Any]:
    message = choice.get("message")
    if message is not None and "content" not in message:
        message["content"] = None if "tool_calls" in message else ""
    return choice
