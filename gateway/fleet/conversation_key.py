"""By what requests are told to belong together: the key of a conversation, and the names of a prompt's prefixes.

A conversation is known by its beginning: what comes before its second turn does not change while it grows.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from uuid import UUID

from protocol.prefixes import prefix_names

MOST_KEY_TOKENS = 32_768
"""Tokens of a beginning that are hashed."""
RAW_KEY_TOKENS = 512
"""Tokens of a beginning without turns: a client continues its own text."""


def conversation_key(project: UUID, partition: str, tokens: Sequence[int], beginning: int) -> bytes:
    """The key of a conversation of this project whose first `beginning` tokens stay as they are.

    `partition`: a client's own name for what belongs together.
    """
    first = array("I", tokens[: min(beginning, MOST_KEY_TOKENS)])
    return hashlib.blake2b(first.tobytes(), digest_size=16, key=project.bytes, salt=_digest(partition)).digest()


def names_of_prompt(project: UUID, partition: str, model: str, tokens: Sequence[int]) -> bytes:
    """The names of a prompt's prefixes (`protocol.prefixes`), others in each project, partition and served model."""
    return prefix_names(project.bytes + _digest(partition) + _digest(model), tokens)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest() if text else bytes(16)
