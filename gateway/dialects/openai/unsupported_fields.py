"""Fields of OpenAI's and vLLM's that would change the answer and that we do not have: refused, never overlooked.

What only hints (`reasoning_effort`, `prediction`, `prompt_cache_key`, `user`, `store` …), and what nobody has heard of,
is passed over, as clients expect of a server that is older than they are.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from gateway.dialects.json_paths import ABSENT
from gateway.errors import InvalidRequest


class UnsupportedFields(Struct, frozen=True, kw_only=True):
    """The lower part is vLLM's."""

    tools: Raw = ABSENT
    tool_choice: Raw = ABSENT
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


_NOTHING = (b"null", b"false", b"[]")
_CHANGES_NOTHING: dict[str, tuple[bytes, ...]] = {
    "tool_choice": (b"null", b'"none"', b'"auto"'),
    "function_call": (b"null", b'"none"', b'"auto"'),
    "modalities": (b"null", b'["text"]'),
    "add_generation_prompt": (b"null", b"true"),
    "chat_template_kwargs": (b"null", b"{}"),
    "skip_special_tokens": (b"null", b"true"),
}
"""Where it is not `_NOTHING` that asks for what we do anyway."""
_LONGEST = 256
"""Bytes of what asks for nothing, however much white space is in it; more is not looked at."""


def refuse_unsupported(request: UnsupportedFields) -> None:
    """Raise InvalidRequest naming a field that we would have to overlook."""
    for name in UnsupportedFields.__struct_fields__:
        given: Raw = getattr(request, name)
        if given is ABSENT:
            continue
        said = given if len(given) > _LONGEST else msgspec.json.encode(msgspec.json.decode(given))
        if said not in _CHANGES_NOTHING.get(name, _NOTHING):
            path = f"$.{name}"
            raise InvalidRequest(f"{path} is not supported here.", path=path, code="unsupported_parameter")
