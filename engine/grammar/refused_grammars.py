"""The grammars that are refused, by digest, in a file that outlives the replica.

An attempt is recorded before the replica's own process compiles a grammar and cleared afterwards. An attempt that is
still there at the next start means that the replica ended while it compiled the grammar. That is a strike, since the
cause may have been something else. With the second strike within an hour the grammar is refused for an hour. A
successful compilation clears its strikes.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

logger = structlog.get_logger("engine.grammar.refused_grammars")

ENDED_REPLICA = "the engine ended when it was compiled"
_PERIOD_S = 3600.0
_STRIKES = 2
"""Ends of the replica after which the grammar is taken for their cause."""
_MOST = 4096
"""Records that are kept."""
_COMPACTED_BYTES = 4 << 20


class _Record(Struct, frozen=True, array_like=True):
    """`problem`: why the grammar is refused until `until`; empty if it is not. `attempted`: it is being compiled.
    `strikes`: how often the replica ended meanwhile."""

    digest: bytes
    problem: str
    until: float
    attempted: bool = False
    strikes: int = 0


class RefusedGrammars:
    """A log of records in `path`; None keeps them in memory alone. `clock`: seconds since the Unix epoch."""

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._known: OrderedDict[bytes, _Record] = OrderedDict()
        self._file: int | None = None
        self._behind = False
        """Whether the file lacks a record or ends in part of one, so that it must be rewritten."""
        if path is not None:
            self._load(path)
            self._compact(path)

    def problem(self, digest: bytes) -> str | None:
        """Why this grammar is refused; None if it is not."""
        record = self._known.get(digest)
        if record is None or not record.problem:
            return None
        if record.until <= self._clock():
            del self._known[digest]
            return None
        return record.problem

    def refuse(self, digest: bytes, problem: str) -> None:
        """Refuse this grammar for an hour."""
        self._keep(_Record(digest, problem, self._clock() + _PERIOD_S))

    def attempt(self, digest: bytes) -> None:
        """The grammar is about to be compiled: if the process ends meanwhile, that is a strike."""
        record = self._known.get(digest)
        now = self._clock()
        strikes = record.strikes if record is not None and record.until > now else 0
        self._keep(_Record(digest, "", now + _PERIOD_S, attempted=True, strikes=strikes))

    def survived(self, digest: bytes) -> None:
        """The grammar was compiled and the process still runs: clear its strikes."""
        self._keep(_Record(digest, "", 0.0))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _keep(self, record: _Record) -> None:
        self._known.pop(record.digest, None)
        if record.problem or record.attempted or record.strikes:
            self._known[record.digest] = record
        while len(self._known) > _MOST:
            self._known.popitem(last=False)
        if self._file is None or self._path is None:
            return
        try:
            # What was written to the kernel survives the end of the process, so there is no need for fsync.
            framed = _framed(record)
            self._behind = self._behind or os.write(self._file, framed) < len(framed)
            if self._behind or os.fstat(self._file).st_size > _COMPACTED_BYTES:
                self._compact(self._path)
        except OSError as error:
            self._behind = True
            logger.warning("a refused grammar cannot be recorded", path=str(self._path), problem=str(error))

    def _load(self, path: Path) -> None:
        try:
            data = path.read_bytes() if path.exists() else b""
        except OSError as error:
            logger.warning("refused grammars cannot be read", path=str(path), problem=str(error))
            return
        records: OrderedDict[bytes, _Record] = OrderedDict()
        at = 0
        while at + 4 <= len(data):
            length = int.from_bytes(data[at : at + 4], "big")
            try:
                record = msgspec.msgpack.decode(data[at + 4 : at + 4 + length], type=_Record)
            except msgspec.DecodeError:
                break  # torn: the end of the file was never written completely
            records.pop(record.digest, None)
            records[record.digest] = record
            at += 4 + length
        now = self._clock()
        for digest, record in records.items():
            if record.until > now and (record.attempted or record.problem or record.strikes):
                strikes = record.strikes + record.attempted
                refused = strikes >= _STRIKES
                if record.attempted:
                    logger.error(
                        "the replica ended while it compiled a grammar",
                        grammar=digest.hex()[:16], strikes=strikes, refused=refused,
                    )  # fmt: skip
                problem = record.problem or (ENDED_REPLICA if refused else "")
                self._known[digest] = _Record(digest, problem, record.until, strikes=strikes)
        while len(self._known) > _MOST:
            self._known.popitem(last=False)

    def _compact(self, path: Path) -> None:
        """Write the current records to a new file that replaces the old one; on failure go on with the old one."""
        beside = path.with_suffix(".new")
        try:
            beside.write_bytes(b"".join(map(_framed, self._known.values())))
            beside.chmod(0o600)
            beside.replace(path)
            file = os.open(path, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            logger.warning("refused grammars are kept in memory alone", path=str(path), problem=str(error))
            return
        self.close()
        self._file, self._behind = file, False


def _framed(record: _Record) -> bytes:
    encoded = msgspec.msgpack.encode(record)
    return len(encoded).to_bytes(4, "big") + encoded
