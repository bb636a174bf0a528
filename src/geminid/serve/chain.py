"""The hash chain of the log: every record's hash covers the record and the hash before it.

The last hash shows whether any record up to there was changed, lost or put in another order. A snapshot is bound to the
chain by a *seal*, a hash over its text and the hash of the record that it was made after.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

#: The hash before the first record.
GENESIS = bytes(32)


@dataclass(frozen=True, slots=True)
class Link:
    """A place in the log: the number of a record, and the hash of everything up to it."""

    seq: int = 0
    chain: bytes = GENESIS


#: Before the first record.
BEGINNING = Link()


@dataclass(frozen=True, slots=True)
class Row:
    """A record as the database has it."""

    seq: int
    at_s: float
    kind: str
    job_id: str | None
    body: str

    def after(self, previous: bytes) -> bytes:
        """The hash of this record after one with that hash."""
        job_id = b"" if self.job_id is None else b"=" + self.job_id.encode("utf-8", "surrogatepass")
        kind, body = self.kind.encode("utf-8", "surrogatepass"), self.body.encode("utf-8", "surrogatepass")
        lengths = struct.pack(">qdIII", self.seq, self.at_s, len(kind), len(job_id), len(body))
        return hashlib.sha256(b"".join((previous, lengths, kind, job_id, body))).digest()


def seal(chain: bytes, body: str) -> bytes:
    """What binds a snapshot to the record that it was made after."""
    return hashlib.sha256(b"snapshot" + chain + body.encode("utf-8", "surrogatepass")).digest()
