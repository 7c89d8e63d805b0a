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


def model_object(model: ServedModel) -> ModelObject:
    """One model."""
    return ModelObject(model.name, model.created, model.context_tokens, model.min_cacheable_tokens)


def model_list(models: Iterable[ServedModel]) -> ModelList:
    """All models."""
    return ModelList([model_object(model) for model in models])
