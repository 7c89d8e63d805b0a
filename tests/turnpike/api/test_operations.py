"""The operations that commands call are those of the document."""

from __future__ import annotations

from scripts.command_operations import content
from turnpike.api.operations import FILE


def test_operations_are_those_of_the_document() -> None:
    assert content() == FILE.read_bytes(), "run: make docs"
