"""Who may talk, and in which version of a protocol: the first message on a connection decides."""

from __future__ import annotations

import hmac

from geminid.wire.codec import ProtocolError


def check_token(offered: str, expected: str) -> None:
    """Compare secrets in constant time.

    Raises:
        ProtocolError: they differ.
    """
    if not hmac.compare_digest(offered.encode("utf-8", "replace"), expected.encode("utf-8", "replace")):
        raise ProtocolError("the token is wrong")


def check_version(peer: str, offered: int, expected: int) -> None:
    """Refuse a peer that speaks another version of a protocol.

    Raises:
        ProtocolError: it does.
    """
    if offered != expected:
        raise ProtocolError(f"{peer} speaks version {offered} of the protocol, not {expected}")
