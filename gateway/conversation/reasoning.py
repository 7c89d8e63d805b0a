"""How much a model is to reason: what its template is told, and how many tokens the reasoning may have.

A template that has a variable for it is told what the client said. An effort becomes a budget where the template has no
variable for efforts, and a budget is kept by the replica.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gateway.conversation.output.output_formats import ReasoningMarkers
from gateway.conversation.tokenizer import Tokenizer
from gateway.generation_request import Effort, GenerationRequest, ReasoningWish
from protocol.requests import Reasoning

EFFORT_BUDGETS: Mapping[Effort, int | None] = {
    "none": 0,
    "minimal": 512,
    "low": 1024,
    "medium": 4096,
    "high": 16_384,
    "xhigh": 32_768,
    "max": None,
}
"""Effort → tokens of reasoning, where the template takes no effort; None: up to the answer's limit."""
_SPACES = 3
"""Tokens of white space that may follow the marker by which a template opens the reasoning."""
_EFFORT_VARIABLE = "reasoning_effort"
_SWITCHES = ("enable_thinking", "thinking")
TEMPLATE_VARIABLES = frozenset({_EFFORT_VARIABLE, *_SWITCHES})
"""What templates call their variables for it: an effort in words, and whether to reason at all."""
_WORDS: Mapping[Effort, str] = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
"""Efforts that templates do not know → the nearest that they do."""


def template_variables(wish: ReasoningWish, known: Collection[str]) -> dict[str, object]:
    """What a template that reads the variables `known` is told."""
    variables: dict[str, object] = {}
    if wish.enabled is not None:
        variables = {name: wish.enabled for name in _SWITCHES if name in known}
    if _EFFORT_VARIABLE in known and (effort := "none" if wish.enabled is False else wish.effort):
        variables[_EFFORT_VARIABLE] = _WORDS.get(effort, effort)
    return variables


def budget_of(wish: ReasoningWish, known: Collection[str]) -> int | None:
    """Tokens that the reasoning may have; None for no limit of its own."""
    if wish.enabled is False:
        return 0
    if wish.budget is not None or wish.effort is None or _EFFORT_VARIABLE in known:
        return wish.budget
    return EFFORT_BUDGETS[wish.effort]


def has_begun(
    markers: ReasoningMarkers, tokenizer: Tokenizer, prompt: Sequence[int], *, continued: bool = False
) -> bool:
    """Whether the prompt ends within the model's reasoning: its template has opened it, or the beginning of an answer
    that is `continued`. Where the marker is a token, the same characters in other tokens open none."""
    marker = tokenizer.literal(markers.begin)
    if len(marker) > 1 and marker[0] not in tokenizer.special:
        tail = prompt[-len(markers.begin) - _SPACES :]
        return "".join(tokenizer.spelled(token)[0] for token in tail).rstrip().endswith(markers.begin)
    end = tokenizer.ids_of([markers.end])
    for at in range(len(prompt), len(marker) - 1, -1):
        if list(prompt[at - len(marker) : at]) == marker:
            return True
        token = prompt[at - 1]
        within = token not in tokenizer.special and token not in end  # of the turn that the model goes on with
        if not (within if continued else len(prompt) - at < _SPACES and not tokenizer.spelled(token)[0].strip()):
            return False
    return False


def reasoning_of(
    generation: GenerationRequest,
    known: Collection[str],
    markers: ReasoningMarkers,
    tokenizer: Tokenizer,
    prompt: Sequence[int],
) -> Reasoning | None:
    """What the replica is told of an output's reasoning: of its budget, and of where a grammar begins. None where there
    is nothing to tell, or where the end of the reasoning is no token of its own."""
    budget, grammar = budget_of(generation.reasoning, known), generation.grammar
    if generation.prompt is not None or generation.max_tokens == 0 or (budget is None and grammar is None):
        return None
    end, literal = tuple(tokenizer.ids_of([markers.end])), tokenizer.literal
    if not end:
        return None
    begin = literal(markers.begin)
    if not markers.header and len(begin) > 1:
        begin = []  # it is no marker of this vocabulary
    answer = literal(markers.answer) if grammar is not None and not grammar.calls else []
    opening = literal(markers.begin + markers.header) if markers.header and budget != 0 else answer
    return Reasoning(
        end=(*end, *literal(markers.follows)),
        begin=tuple(begin),
        begun=has_begun(markers, tokenizer, prompt, continued=generation.continued),
        budget=budget,
        opening=tuple(opening),
        answer=tuple(answer),
    )
