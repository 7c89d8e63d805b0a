"""The errors that keep a replica from starting or running, each of them one clear line."""

from __future__ import annotations

from storage.reported_error import ReportedError


class EngineError(ReportedError):
    """Base: the replica cannot start or go on. The message is one line and names the path, field or tensor."""


class ModelError(EngineError):
    """The model folder is missing, incomplete, contradictory or of an unsupported kind."""


class StartError(EngineError):
    """An option, the data folder or the address cannot be used."""


class DiskFull(EngineError):
    """The disk of the journal has no room. The same start works when it has some."""

    temporary = True


class EngineFailed(EngineError):
    """The engine's thread ended by an error, which is in the log. A new start may work."""

    temporary = True
