"""A choice of a request that is at a foreign engine: what of its stream may be taken, and what its prompt counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.foreign.engine_client import Ended
from engine.foreign.streams import Stream
from engine.scheduling.request import Request
from protocol.requests import Generate


@dataclass(eq=False)
class ForeignRun:
    """`counted`: whether its prompt is. `ended`: why it has all its tokens, while its counts are still to come."""

    request: Request
    stream: Stream
    counted: bool = False
    ended: Ended | None = None

    @property
    def may_take(self) -> bool:
        """Whether something has come that may be sent, or that nothing more comes."""
        over = self.stream.over  # first: its last chunk comes before it
        if not self.stream.chunks:
            return over
        request = self.request
        return not request.max_output or not self.stream.chunks[0].tokens or not request.paused

    def wanted(self, generate: Generate, tokens: Sequence[int]) -> tuple[list[int], Ended | None]:
        """The tokens up to the first one that stops the output, and whether there was one. Under a grammar the engine
        says where it ends."""
        if generate.grammar is None:
            for index, token in enumerate(tokens):
                if token in generate.sampling.stop_tokens:
                    return list(tokens[: index + 1]), "stop"
        return list(tokens), None

    def count_prompt(self, cached: int, *, first: bool) -> dict[str, int]:
        """Count the prompt by what the engine says it had of it, which may come again, and better. Where it is not the
        `first` choice, which counts it for all, it is recomputed. Returns what each count grew by."""
        request, prompt = self.request, self.request.prompt
        cached = min(cached, prompt) if request.read else 0
        before = request.computed, request.read_hbm, request.recomputed
        if first:
            request.computed, request.read_hbm = prompt - cached, cached
        else:
            request.recomputed = prompt - cached
        self.counted = True
        after = request.computed, request.read_hbm, request.recomputed
        return {
            name: new - old for name, old, new in zip(("computed", "read", "recomputed"), before, after, strict=True)
        }
