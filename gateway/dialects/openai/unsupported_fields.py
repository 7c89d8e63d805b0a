"""Fields of OpenAI and vLLM that would change the answer and are not supported: refused, never ignored.

Hints (`reasoning_effort`, `prediction`, `user`, `store` and so on) and unknown fields are ignored,
as clients expect of a server older than themselves.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from gateway.dialects.json_paths import ABSENT
from gateway.errors import InvalidField


class UnsupportedFields(Struct, frozen=True, kw_only=True):
    """The refused fields; those of the lower part are vLLM's."""

    functions: Raw = ABSENT
    function_call: Raw = ABSENT
    modalities: Raw = ABSENT
    web_search_options: Raw = ABSENT

    add_generation_prompt: Raw = ABSENT
    allowed_token_ids: Raw = ABSENT
    bad_words: Raw = ABSENT
    chat_template: Raw = ABSENT
    chat_template_kwargs: Raw = ABSENT
    continue_final_message: Raw = ABSENT
    documents: Raw = ABSENT
    include_stop_str_in_output: Raw = ABSENT
    prompt_logprobs: Raw = ABSENT
    skip_special_tokens: Raw = ABSENT
    truncate_prompt_tokens: Raw = ABSENT
    use_beam_search: Raw = ABSENT


_NO_EFFECT = (b"null", b"false", b"[]")
_DEFAULTS: dict[str, tuple[bytes, ...]] = {
    "function_call": (b"null", b'"none"', b'"auto"'),
    "modalities": (b"null", b'["text"]'),
    "add_generation_prompt": (b"null", b"true"),
    "chat_template_kwargs": (b"null", b"{}"),
    "skip_special_tokens": (b"null", b"true"),
}
"""Field -> its values that ask for what is done anyway, where these are not `_NO_EFFECT`."""
_LONGEST = 256
"""A longer value is refused without looking at it."""


def reject_unsupported(request: UnsupportedFields) -> None:
    """Raise InvalidRequest, which names the field, for a value that is not supported."""
    for name in UnsupportedFields.__struct_fields__:
        raw: Raw = getattr(request, name)
        if raw is ABSENT:
            continue
        value = raw if len(raw) > _LONGEST else msgspec.json.encode(msgspec.json.decode(raw))
        if value not in _DEFAULTS.get(name, _NO_EFFECT):
            raise InvalidField(f"$.{name}", "it is not supported", code="unsupported_parameter")
