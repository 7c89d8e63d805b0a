"""Fields of OpenAI and vLLM that would change the answer and are not supported: refused, never ignored.

Hints (`prediction`, `user`, `store` and so on) and unknown fields are ignored,
as clients expect of a server older than themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from gateway.errors import InvalidField

_NO_EFFECT: tuple[Any, ...] = (None, False, [])
_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "function_call": (None, "none", "auto"),
    "modalities": (None, ["text"]),
    "add_generation_prompt": (None, True),
    "chat_template_kwargs": (None, {}),
    "skip_special_tokens": (None, True),
}
"""Field -> its values that ask for what is done anyway, where these are not `_NO_EFFECT`."""


def _only(values: tuple[Any, ...]) -> Meta:
    return Meta(
        description="Not supported: refused, but for values that ask for what is done anyway.",
        extra_json_schema={"enum": list(values)},
    )


Refused: TypeAlias = Annotated[Raw, _only(_NO_EFFECT)] | UnsetType
_Choice: TypeAlias = Annotated[Raw, _only(_DEFAULTS["function_call"])] | UnsetType
_Modalities: TypeAlias = Annotated[Raw, _only(_DEFAULTS["modalities"])] | UnsetType
_Always: TypeAlias = Annotated[Raw, _only(_DEFAULTS["skip_special_tokens"])] | UnsetType
_Empty: TypeAlias = Annotated[Raw, _only(_DEFAULTS["chat_template_kwargs"])] | UnsetType


class UnsupportedFields(Struct, frozen=True, kw_only=True):
    """The refused fields; those of the lower part are vLLM's."""

    functions: Refused = UNSET
    function_call: _Choice = UNSET
    modalities: _Modalities = UNSET
    web_search_options: Refused = UNSET

    add_generation_prompt: _Always = UNSET
    allowed_token_ids: Refused = UNSET
    bad_words: Refused = UNSET
    chat_template: Refused = UNSET
    chat_template_kwargs: _Empty = UNSET
    continue_final_message: Refused = UNSET
    documents: Refused = UNSET
    include_stop_str_in_output: Refused = UNSET
    prompt_logprobs: Refused = UNSET
    skip_special_tokens: _Always = UNSET
    truncate_prompt_tokens: Refused = UNSET
    use_beam_search: Refused = UNSET


_TAKEN = {
    name: tuple(map(msgspec.json.encode, _DEFAULTS.get(name, _NO_EFFECT)))
    for name in UnsupportedFields.__struct_fields__
}
_NOTHING = tuple(map(msgspec.json.encode, _NO_EFFECT))
_LONGEST = 256
"""A longer value is refused without looking at it."""


def reject_unsupported(request: UnsupportedFields, more: Sequence[str] = ()) -> None:
    """Raise InvalidRequest, which names the field, for a value that is not supported. `more`: fields of one endpoint
    that are refused too."""
    for name, taken in (_TAKEN | dict.fromkeys(more, _NOTHING)).items() if more else _TAKEN.items():
        raw: Raw | UnsetType = getattr(request, name)
        if raw is UNSET:
            continue
        value = raw if len(raw) > _LONGEST else msgspec.json.encode(msgspec.json.decode(raw))
        if value not in taken:
            raise InvalidField(f"$.{name}", "it is not supported", code="unsupported_parameter")
