"""SQL that was compiled once is compiled for all: a process that serves has one engine, tests have one each.

SQLAlchemy keeps with each engine what it made of a statement, and takes it again for the same statement with other
values. Every test opens a database of its own, so each compiled everything anew, which was a tenth of all CPU time.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from sqlalchemy import Connection, Engine, event

_Key = tuple[Hashable, ...]


class _Compiled(dict[_Key, Any]):
    """SQLAlchemy's keys begin with the engine's dialect; here one stands for all of its kind."""

    def get(self, key: _Key, default: Any = None) -> Any:
        return super().get(_of_kind(key), default)

    def __setitem__(self, key: _Key, compiled: Any) -> None:
        super().__setitem__(_of_kind(key), compiled)


def _of_kind(key: _Key) -> _Key:
    dialect, *statement = key
    return (type(dialect), *statement)


def share() -> None:
    """Let all engines of this process, of now and later, take from each other what they have compiled."""
    compiled = _Compiled()

    @event.listens_for(Engine, "engine_connect")
    def connected(connection: Connection) -> None:
        connection.execution_options(compiled_cache=compiled)
