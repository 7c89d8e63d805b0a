"""Served models as OpenAI's model objects."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from gateway.conversation.served_model import ServedModel


class ModelObject(Struct, frozen=True):
    """OpenAI's fields, and what a client needs to know of ours: the context and the shortest cacheable prompt."""

    id: str
    created: int
    context_tokens: int
    min_cacheable_tokens: int
    object: str = "model"
    owned_by: str = "turnpike"


class ModelList(Struct, frozen=True):
    """All of them."""

    data: list[ModelObject]
    object: str = "list"


def model_object(model: ServedModel, context_tokens: int) -> ModelObject:
    """One model, with the context that its replicas give it."""
    return ModelObject(model.name, model.created, context_tokens, model.min_cacheable_tokens)


def model_list(models: Iterable[tuple[ServedModel, int]]) -> ModelList:
    """All models, each with its context."""
    return ModelList([model_object(model, context_tokens) for model, context_tokens in models])
