"""Fields of OpenAI, vLLM and SGLang that would change the answer or its isolation and are not supported: refused, never
ignored.

Hints (`user`, `store` and so on) and unknown fields are ignored,
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
    "include_reasoning": (None, True),
    "separate_reasoning": (None, True),
    "stream_reasoning": (None, True),
    "thinking_token_budget": (None, -1),
    "kv_transfer_params": (None, {}),
    "vllm_xargs": (None, {}),
    "custom_params": (None, {}),
    "session_params": (None, {}),
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
_Unlimited: TypeAlias = Annotated[Raw, _only(_DEFAULTS["thinking_token_budget"])] | UnsetType

_INSTEAD = {
    "regex": "use $.structured_outputs.regex",
    "ebnf": "use $.structured_outputs.grammar",
    "json_schema": "use $.response_format",
    "thinking_token_budget": "use $.reasoning_effort",
}
"""Field -> what does the same here."""


class UnsupportedFields(Struct, frozen=True, kw_only=True):
    """The refused fields: OpenAI's, then vLLM's, then SGLang's."""

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
    include_reasoning: _Always = UNSET
    thinking_token_budget: _Unlimited = UNSET
    kv_transfer_params: _Empty = UNSET
    vllm_xargs: _Empty = UNSET
    repetition_detection: Refused = UNSET
    prompt_embeds: Refused = UNSET
    enable_response_messages: Refused = UNSET
    previous_input_messages: Refused = UNSET
    return_tokens_as_token_ids: Refused = UNSET
    return_token_ids: Refused = UNSET
    return_token_offsets: Refused = UNSET
    return_prompt_text: Refused = UNSET
    return_assistant_tokens_mask: Refused = UNSET

    separate_reasoning: _Always = UNSET
    stream_reasoning: _Always = UNSET
    regex: Refused = UNSET
    ebnf: Refused = UNSET
    json_schema: Refused = UNSET
    stop_regex: Refused = UNSET
    no_stop_trim: Refused = UNSET
    lora_path: Refused = UNSET
    session_params: _Empty = UNSET
    custom_logit_processor: Refused = UNSET
    custom_params: _Empty = UNSET
    watermark: Refused = UNSET
    input_ids: Refused = UNSET
    task: Refused = UNSET
    return_hidden_states: Refused = UNSET
    return_routed_experts: Refused = UNSET
    return_prompt_token_ids: Refused = UNSET
    return_meta_info: Refused = UNSET
    return_input_ids_in_sglext: Refused = UNSET
    return_output_ids_in_sglext: Refused = UNSET
    return_sampling_mask: Refused = UNSET
    return_flat_raw_output_top_logprobs: Refused = UNSET
    sampling_logprobs_mode: Refused = UNSET


_TAKEN = {name: tuple(map(msgspec.json.encode, values)) for name, values in _DEFAULTS.items()}
_NOTHING = tuple(map(msgspec.json.encode, _NO_EFFECT))
_LONGEST = 256
"""A longer value is refused without looking at it."""


def reject_unsupported(request: UnsupportedFields, more: Sequence[str] = ()) -> None:
    """Raise InvalidRequest, which names the field, for a value that is not supported. `more`: fields of one endpoint
    that are refused too."""
    reject_fields(request, (*UnsupportedFields.__struct_fields__, *more))


def reject_fields(fields: Struct, names: Sequence[str], at: str = "$") -> None:
    """The same for the fields of these names, which stand at this path."""
    for name in names:
        raw: Raw | UnsetType = getattr(fields, name)
        if raw is UNSET:
            continue
        value = raw if len(raw) > _LONGEST else msgspec.json.encode(msgspec.json.decode(raw))
        if value not in _TAKEN.get(name, _NOTHING):
            instead = f"; {_INSTEAD[name]}" if name in _INSTEAD else ""
            raise InvalidField(f"{at}.{name}", f"it is not supported{instead}", code="unsupported_parameter")
