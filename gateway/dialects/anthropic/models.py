"""GET /v1/models in Anthropic's shape: pages of models, each with what it is able to do.

Source: https://docs.anthropic.com/en/api/models-list. `min_cacheable_tokens` is ours.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from gateway.dialects.query_parameters import Parameters
from gateway.errors import InvalidField
from gateway.served_models.served_model import ServedModel
from storage.database.base import from_instant

_MOST = 1000
"""Models on a page at most."""


class Support(Struct, frozen=True):
    supported: bool = False


class ContextManagement(Struct, frozen=True):
    supported: bool = False
    clear_thinking_20251015: Support = Support()
    clear_tool_uses_20250919: Support = Support()
    compact_20260112: Support = Support()


class Effort(Struct, frozen=True):
    supported: bool = False
    low: Support = Support()
    medium: Support = Support()
    high: Support = Support()
    xhigh: Support = Support()
    max: Support = Support()


class ServerTools(Struct, frozen=True):
    supported: bool = False
    code_execution: Support = Support()
    web_search: Support = Support()


class ThinkingTypes(Struct, frozen=True):
    """What a request may say. A model that does not think passes over all but `enabled`, which demands it."""

    adaptive: Support = Support(True)
    between_tools: Support = Support(True)
    disabled: Support = Support(True)
    enabled: Support = Support()


class Thinking(Struct, frozen=True):
    supported: bool = False
    types: ThinkingTypes = ThinkingTypes()


class Capabilities(Struct, frozen=True):
    batch: Support = Support()
    citations: Support = Support()
    code_execution: Support = Support()
    context_management: ContextManagement = ContextManagement()
    effort: Effort = Effort()
    image_input: Support = Support()
    pdf_input: Support = Support()
    server_tools: ServerTools = ServerTools()
    structured_outputs: Support = Support(True)
    thinking: Thinking = Thinking()


class ModelInfo(Struct, frozen=True, kw_only=True):
    """A served model. It is listed while it is served, and therefore active."""

    type: str = "model"
    id: str
    display_name: str
    created_at: str
    lifecycle: str = "active"
    line: None = None
    max_input_tokens: int
    max_tokens: int
    capabilities: Capabilities = Capabilities()
    deprecated_at: None = None
    retires_at: None = None
    min_cacheable_tokens: int


class ModelPage(Struct, frozen=True):
    data: list[ModelInfo]
    has_more: bool
    first_id: str | None
    last_id: str | None


def model_info(model: ServedModel, context_tokens: int) -> ModelInfo:
    """A model as Anthropic shows one. `context_tokens`: what its replicas have room for."""
    thinks = Support(model.template.reasons)
    return ModelInfo(
        id=model.name,
        display_name=model.name,
        created_at=from_instant(model.created * 1_000_000).strftime("%Y-%m-%dT%H:%M:%SZ"),
        max_input_tokens=context_tokens,
        max_tokens=context_tokens,
        capabilities=Capabilities(
            effort=Effort(thinks.supported, thinks, thinks, thinks, thinks, thinks),
            thinking=Thinking(thinks.supported, ThinkingTypes(enabled=Support(model.keeps_budgets))),
        ),
        min_cacheable_tokens=model.min_cacheable_tokens,
    )


def model_page(models: Sequence[ModelInfo], parameters: Parameters) -> ModelPage:
    """The page that the query asks for. Raises InvalidRequest naming the parameter."""
    size = parameters.page_size(most=_MOST)
    after, before = parameters.text("after_id"), parameters.text("before_id")
    parameters.reject_unknown()
    if after is not None and before is not None:
        raise InvalidField("before_id", "it cannot be combined with after_id")
    ids = [model.id for model in models]
    if before is not None:
        end = _place(ids, before, "before_id")
        start = max(0, end - size)
        more = start > 0
    else:
        start = 0 if after is None else _place(ids, after, "after_id") + 1
        end = start + size
        more = end < len(ids)
    page = list(models[start:end])
    return ModelPage(page, more, page[0].id if page else None, page[-1].id if page else None)


def _place(ids: Sequence[str], id_: str, name: str) -> int:
    if id_ not in ids:
        raise InvalidField(name, f"there is no model {id_[:80]!r}")
    return ids.index(id_)
