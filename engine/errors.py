"""What can keep a replica from starting, each as one clear line."""

from __future__ import annotations


class EngineError(Exception):
    """Base: the replica cannot start; the message is one line and names the path, field or tensor."""


class ModelError(EngineError):
    """The model folder is missing, incomplete, contradictory or of an unsupported kind."""


class StartError(EngineError):
    """An option, the data folder or the address cannot be used."""
