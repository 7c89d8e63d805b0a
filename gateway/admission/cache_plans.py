"""The cache plan of a rendered request: the client's markers, which name JSON paths, become positions in its tokens.

A marker lies where its piece of text ends in the prompt. A text that the template leaves out lies where the one before
it ends. Where the template changes the texts so that their place is unknown (a prompt without spans), nothing is
promised.
"""

from __future__ import annotations

from functools import lru_cache

from gateway.conversation.prompt import Prompt
from gateway.errors import InvalidField
from gateway.generation_request import CacheMarker, GenerationRequest, Text
from gateway.served_models.served_model import ServedModel
from prompt_cache.promise.directives import Block, CachePlan, DirectiveError, Marker, plan
from prompt_cache.promise.rule_sets import RuleSet, rules_for
from protocol.requests import StorePolicy


def cache_plan(generation: GenerationRequest, prompt: Prompt, model: ServedModel) -> CachePlan:
    """The plan for this prompt. Raises InvalidRequest naming the field that the rules do not allow."""
    said = generation.cache
    if not (said.markers or said.automatic or said.only_if_cached):
        surface, read_min = generation.surface, model.min_cacheable_tokens
        return _unmarked(surface, model.family, read_min, said.read, said.store)
    rules = rules_for(generation.surface, model.family)
    _refuse_empty(rules, generation)
    ends = _ends(generation, prompt)
    try:
        return plan(
            rules,
            [Marker(ends.get(marker.path, 0), marker.lease) for marker in said.markers],
            prompt_tokens=len(prompt.tokens),
            read_min=model.min_cacheable_tokens,
            blocks=_blocks(generation, prompt),
            automatic=said.automatic,
            automatic_lease=said.automatic_lease,
            read=said.read,
            store=said.store,
            only_if_cached=said.only_if_cached,
            max_age=said.max_age,
        )
    except DirectiveError as error:
        path = said.automatic_path if error.marker is None else said.markers[error.marker].marker_path
        raise InvalidField(path, str(error)) from error


@lru_cache(maxsize=256)
def _unmarked(surface: str, family: str, read_min: int, read: bool, store: StorePolicy) -> CachePlan:
    """The plan of a request without markers, which depends neither on its prompt nor on the age of leases."""
    return plan(rules_for(surface, family), prompt_tokens=0, read_min=read_min, read=read, store=store)


def _refuse_empty(rules: RuleSet, generation: GenerationRequest) -> None:
    if not rules.refuse_empty:
        return
    empty = {text.path for turn in generation.turns for text in turn.texts if not text.text}
    marked: CacheMarker | None = next((marker for marker in generation.cache.markers if marker.path in empty), None)
    if marked is not None:
        raise InvalidField(marked.marker_path, "an empty text block cannot be cached")


def _ends(generation: GenerationRequest, prompt: Prompt) -> dict[str, int]:
    """JSON path of each piece of the request -> the tokens up to its end."""
    ends = {span.path: span.end for span in prompt.spans}
    if ends:
        before = 0
        for turn in generation.turns:
            for text in turn.texts:
                before = ends.setdefault(text.path, before)
    return ends


def _blocks(generation: GenerationRequest, prompt: Prompt) -> list[Block]:
    """The prompt's blocks in rendered order. What is no text of a message is a tool, or a prompt without messages."""
    texts: dict[str, tuple[int, str, Text]] = {
        text.path: (index, turn.role, text) for index, turn in enumerate(generation.turns) for text in turn.texts
    }
    blocks: dict[str, Block] = {}
    for span in prompt.spans:
        index, role, text = texts.get(span.path, (-1, "", None))
        if text is not None:
            blocks[span.path] = Block(span.end, index, role, text.kind)
        elif generation.prompt is not None:
            blocks[span.path] = Block(span.end, 0, "user")
        else:
            blocks[span.path] = Block(span.end, -1, "", "tool")
    return sorted(blocks.values(), key=lambda block: block.end)
