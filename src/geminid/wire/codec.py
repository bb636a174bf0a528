"""Messages as lines of JSON: typed, bounded, and never unpickled.

A message is a frozen ``msgspec.Struct`` with a tag that names its kind. Bounds of numbers, texts and lists are part of
its field types (``Annotated[int, Meta(ge=…, le=…)]``), so that whatever has been decoded can be computed with.

    class Ping(Message): ...
    codec = Codec(Ping | Pong)
    codec.decode(codec.encode(Ping()))
"""

from __future__ import annotations

import json
from typing import Any, Generic, TypeVar

import msgspec

M = TypeVar("M")

#: Longest line that is sent or accepted, unless a codec says otherwise.
MAX_LINE_BYTES = 1 << 20

#: How much of a description of a malformed message is passed on: it may quote the message.
MAX_PROBLEM_CHARACTERS = 200


class ProtocolError(Exception):
    """A line that is not a message, or not one that may be sent now; one sentence says why."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=str.lower, forbid_unknown_fields=True):
    """Base of messages: tagged by ``kind``, the class name in lower case; surplus fields are refused."""


class Codec(Generic[M]):
    """Encodes and decodes one union of messages, a line each."""

    def __init__(self, union: Any, *, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self.max_line_bytes = max_line_bytes
        self._encoder = msgspec.json.Encoder(enc_hook=_plain)
        self._decoder: msgspec.json.Decoder[M] = msgspec.json.Decoder(union)

    def encode(self, message: M) -> bytes:
        """The message as a line of JSON, with its newline.

        Raises:
            ProtocolError: the line is too long.
        """
        try:
            line = self._encoder.encode(message) + b"\n"
        except UnicodeEncodeError:  # a text, such as a file name, with bytes that are not UTF-8
            text = json.dumps(msgspec.to_builtins(message), ensure_ascii=False, separators=(",", ":"))
            line = text.encode("utf-8", "replace") + b"\n"
        if len(line) > self.max_line_bytes:
            raise ProtocolError(f"a message of {len(line)} bytes is longer than {self.max_line_bytes}")
        return line

    def decode(self, line: bytes | bytearray | memoryview) -> M:
        """The message of a line.

        Raises:
            ProtocolError: the line is not one of the messages.
        """
        if len(line) > self.max_line_bytes:
            raise ProtocolError(f"a line of {len(line)} bytes is longer than {self.max_line_bytes}")
        try:
            return self._decoder.decode(line)
        except msgspec.ValidationError as problem:
            raise ProtocolError(f"not a message of this protocol: {_shortened(problem)}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise ProtocolError(f"not JSON: {_shortened(problem)}") from None


def _plain(value: Any) -> Any:
    """A number or text of a derived type, such as NumPy's, as a plain one."""
    for plain in (float, int, str):
        if isinstance(value, plain):
            return plain(value)
    raise NotImplementedError(f"a message cannot have a {type(value).__name__}")


def _shortened(problem: Exception) -> str:
    return str(problem)[:MAX_PROBLEM_CHARACTERS]
