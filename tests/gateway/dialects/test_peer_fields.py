"""Every field of vLLM's and SGLang's requests: supported, refused by name, or of no effect on the answer and its cache.

`peer_fields.txt` has the fields of their request models, with inherited ones, as the sources of vLLM 0.25.1
(`vllm/entrypoints/openai/{chat_completion,completion,responses}/protocol.py`, `anthropic/protocol.py`) and of SGLang
0.5.23 (`sglang/srt/entrypoints/{openai,anthropic}/protocol.py`) have them. One that stands in no table here fails.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.dialects.anthropic import messages_request
from gateway.dialects.openai import chat_request, completions_request
from gateway.dialects.openai.responses import request as responses_request
from gateway.errors import InvalidField

TOOLS: Any = [{"type": "function", "function": {"name": "f"}}]
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"model": "tiny", "messages": [{"role": "user", "content": "x"}]},
    "completions": {"model": "tiny", "prompt": "x"},
    "responses": {"model": "tiny", "input": "x"},
    "messages": {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]},
}
READERS: dict[str, Callable[[bytes], Any]] = {
    "chat": chat_request.parse,
    "completions": completions_request.parse,
    "responses": lambda body: (
        request := responses_request.decode_request(body),
        responses_request.generation_of(request),
    ),
    "messages": messages_request.parse,
}
SUPPORTED: dict[str, Any] = {
    "model": "other", "frequency_penalty": 0.5, "presence_penalty": 0.5, "repetition_penalty": 1.5,
    "logit_bias": {"5": 1},
    "max_tokens": 7, "n": 2, "seed": 1, "stop": "x", "stream": True, "temperature": 0.5, "top_p": 0.5, "top_k": 3,
    "min_p": 0.1, "min_tokens": 2, "stop_token_ids": [4], "ignore_eos": True, "cache_salt": "salt", "extra_key": "salt",
    "structured_outputs": {"regex": "a+"}, "response_format": {"type": "json_object"},
}  # fmt: skip
"""Field -> a value that makes another request of it."""
SUPPORTED_BY: dict[str, dict[str, Any]] = {
    "chat": {
        "messages": [{"role": "user", "content": "y"}], "max_completion_tokens": 7, "logprobs": True, "tools": TOOLS,
        "reasoning_effort": "low", "thinking": {"type": "disabled"},
    },
    "completions": {"prompt": "y", "echo": True, "logprobs": 1, "add_special_tokens": False},
    "responses": {
        "background": True, "include": ["message.output_text.logprobs"], "input": "y", "instructions": "y",
        "max_output_tokens": 7, "metadata": {"tag": "t"}, "previous_response_id": "resp_1", "prompt_cache_key": "k",
        "reasoning": {"effort": "low"}, "service_tier": "flex", "store": False,
        "text": {"format": {"type": "json_object"}},
        "tools": [{"type": "function", "name": "f"}], "top_logprobs": 1, "truncation": "auto",
    },
    "messages": {
        "messages": [{"role": "user", "content": "y"}], "metadata": {"user_id": "u"}, "stop_sequences": ["s"],
        "output_config": {"effort": "low"}, "system": "y", "thinking": {"type": "disabled"},
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    },
}  # fmt: skip
WITH_OTHERS: dict[str, dict[str, dict[str, Any]]] = {
    "chat": {
        "top_logprobs": {"logprobs": True, "top_logprobs": 1},
        "tool_choice": {"tools": TOOLS, "tool_choice": "required"},
        "parallel_tool_calls": {"tools": TOOLS, "parallel_tool_calls": False},
        "stream_options": {"stream": True, "stream_options": {"include_usage": True}},
    },
    "completions": {
        "best_of": {"n": 2, "best_of": 2},
        "stream_options": {"stream": True, "stream_options": {"include_usage": True}},
    },
    "responses": {
        name: {"tools": [{"type": "function", "name": "f"}], name: value}
        for name, value in (("tool_choice", "required"), ("parallel_tool_calls", False))
    },
    "messages": {
        "tool_choice": {"tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "any"}}
    },
}  # fmt: skip
"""Supported fields that need others beside them."""
REFUSED: dict[str, Any] = {
    "add_generation_prompt": False, "allowed_token_ids": [1], "bad_words": ["x"], "chat_template": "{{ x }}",
    "chat_template_kwargs": {"x": 1}, "continue_final_message": True, "documents": [{"text": "x"}],
    "include_reasoning": False, "include_stop_str_in_output": True, "kv_transfer_params": {"x": 1},
    "prompt_logprobs": 1, "repetition_detection": {"x": 1}, "return_assistant_tokens_mask": True,
    "return_prompt_text": True, "return_token_ids": True, "return_token_offsets": True,
    "return_tokens_as_token_ids": True, "skip_special_tokens": False, "thinking_token_budget": 5,
    "truncate_prompt_tokens": 5, "use_beam_search": True, "vllm_xargs": {"x": 1}, "prompt_embeds": "eA==",
    "enable_response_messages": True, "previous_input_messages": [{"role": "user"}], "max_tool_calls": 1,
    "custom_logit_processor": "x", "custom_params": {"x": 1}, "ebnf": "root ::= x", "regex": "x", "json_schema": "{}",
    "input_ids": [1], "lora_path": "x", "no_stop_trim": True, "stop_regex": "x", "session_params": {"id": "x"},
    "return_flat_raw_output_top_logprobs": True, "return_hidden_states": True, "return_input_ids_in_sglext": True,
    "return_meta_info": True, "return_output_ids_in_sglext": True, "return_prompt_token_ids": True,
    "return_routed_experts": True, "return_sampling_mask": True, "sampling_logprobs_mode": "support",
    "separate_reasoning": False, "stream_reasoning": False, "task": "title", "watermark": {"enabled": True},
    "suffix": "x",
}  # fmt: skip
"""Field -> a value that would change the answer, or who shares its cache."""
REFUSED_BY: dict[str, dict[str, Any]] = {
    "chat": {"add_special_tokens": True, "echo": True},
    "responses": {"structured_outputs": {"regex": "a"}, "prompt": {"id": "x"}},
}
HARMLESS: dict[str, tuple[Any, str]] = {
    "length_penalty": (2.0, "only beams have a length penalty, and they are refused"),
    "spaces_between_special_tokens": (False, "special tokens are never shown"),
    "truncation_side": ("left", "only with truncate_prompt_tokens, which is refused"),
    "media_io_kwargs": ({"x": {}}, "of images, audio and video, which are refused"),
    "mm_processor_kwargs": ({"x": 1}, "of images, audio and video"),
    "images_config": ({"x": 1}, "of images"),
    "video_config": ({"x": 1}, "of video"),
    "max_dynamic_patch": (1, "of images"),
    "min_dynamic_patch": (1, "of images"),
    "use_audio_in_video": (True, "of video"),
    "priority": (1, "when it is served, not what is answered; here service_tier says it"),
    "request_id": ("x", "a name; here X-Request-ID gives one"),
    "rid": ("x", "a name"),
    "user": ("x", "a name"),
    "custom_labels": ({"x": "y"}, "of their metrics"),
    "session_id": ("x", "a name of the session, by which their router finds a replica; the prompt says it here"),
    "betas": (["x"], "what the header anthropic-beta says"),
    "bootstrap_host": ("x", "which of their workers computes the prompt"),
    "bootstrap_port": (1, "which of their workers computes the prompt"),
    "bootstrap_room": (1, "which of their workers computes the prompt"),
    "routed_dp_rank": (1, "which of their workers computes it"),
    "disagg_prefill_dp_rank": (1, "which of their workers computes the prompt"),
    "data_parallel_rank": (1, "which of their workers computes it"),
    "return_cached_tokens_details": (True, "usage always says what was cached"),
    "return_spec_tokens_details": (True, "counts of their speculation"),
    "return_flat_raw_top_logprobs_b64": (False, "the form of return_flat_raw_output_top_logprobs, which is refused"),
    "routed_experts_start_len": (1, "a part of return_routed_experts, which is refused"),
}
"""Field -> a value, and why passing over it changes neither the answer nor who shares its cache."""


def fields(endpoint: str) -> list[str]:
    text = Path(__file__).with_name("peer_fields.txt").read_text()
    lists = re.findall(rf"^\[(?:vllm|sglang) {endpoint}\]\n([^\[]+)", text, re.MULTILINE)
    assert len(lists) == 2
    return sorted({name for names in lists for name in names.split()})


def read(endpoint: str, **more: Any) -> Any:
    return READERS[endpoint](json.dumps({**BODIES[endpoint], **more}).encode())


@pytest.mark.parametrize("endpoint", BODIES)
def test_no_field_is_ignored_in_silence(endpoint: str) -> None:
    plain = read(endpoint)
    refused = {**REFUSED, **REFUSED_BY.get(endpoint, {})}
    supported = {**SUPPORTED, **SUPPORTED_BY[endpoint]}
    for name in fields(endpoint):
        if name in refused:
            with pytest.raises(InvalidField) as error:
                read(endpoint, **{name: refused[name]})
            assert (error.value.path, error.value.code) == (f"$.{name}", "unsupported_parameter")
        elif name in WITH_OTHERS[endpoint]:
            beside = WITH_OTHERS[endpoint][name]
            others = {other: value for other, value in beside.items() if other != name}
            assert read(endpoint, **beside) != read(endpoint, **others) or name == "best_of", name
        elif name in supported:
            assert read(endpoint, **{name: supported[name]}) != plain, name
        else:
            value, reason = HARMLESS[name]
            assert reason
            before = [getattr(part, "generation", part) for part in (plain if isinstance(plain, tuple) else (plain,))][
                -1
            ]
            after = read(endpoint, **{name: value})
            after = [getattr(part, "generation", part) for part in (after if isinstance(after, tuple) else (after,))][
                -1
            ]
            assert after == before, name


def test_values_that_ask_for_what_is_done_anyway_are_taken() -> None:
    """As clients send them that write all defaults."""
    defaults: dict[str, Any] = {name: None for name in REFUSED if name not in ("suffix", "max_tool_calls")}
    defaults |= {
        "include_reasoning": True,
        "separate_reasoning": True,
        "thinking_token_budget": -1,
        "use_beam_search": False,
    }
    defaults |= {"kv_transfer_params": {}, "vllm_xargs": {}, "bad_words": [], "return_hidden_states": False}
    assert read("chat", **defaults, add_special_tokens=False, echo=False) == read("chat")
    assert read("completions", **defaults, add_special_tokens=True) == read("completions")
    assert read("responses", **defaults)[1].generation == read("responses")[1].generation


@pytest.mark.parametrize(
    ("name", "value"),
    [("structural_tag", "{}"), ("whitespace_pattern", " "), ("disable_any_whitespace", True),
     ("disable_additional_properties", True)],
)  # fmt: skip
def test_parts_of_structured_outputs_are_refused_by_name(name: str, value: Any) -> None:
    for endpoint in ("chat", "completions"):
        with pytest.raises(InvalidField) as error:
            read(endpoint, structured_outputs={"json": {"type": "object"}, name: value})
        assert (error.value.path, error.value.code) == (f"$.structured_outputs.{name}", "unsupported_parameter")


def test_usage_in_each_chunk_is_refused_by_name() -> None:
    for endpoint in ("chat", "completions"):
        with pytest.raises(InvalidField) as error:
            read(endpoint, stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
        assert error.value.path == "$.stream_options.continuous_usage_stats"


def test_a_salt_is_a_part_of_the_cache_of_its_own() -> None:
    """Another one for each salt, each key, and both."""
    bodies = [{}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"extra_key": "a"}, {"prompt_cache_key": "a"},
              {"prompt_cache_key": "a", "cache_salt": "a"}]  # fmt: skip
    for endpoint in ("chat", "responses"):
        told = [read(endpoint, **body) for body in bodies]
        calls = [one[1] if isinstance(one, tuple) else one for one in told]
        partitions = [call.generation.cache.partition for call in calls]
        assert len(set(partitions)) == len(bodies)
        assert partitions[0] == ""
    assert read("messages", cache_salt="a").generation.cache.partition == partitions[1]
    assert read("messages").generation.cache.partition == ""
    for value in ("", ["a", "b"], 7):
        with pytest.raises(InvalidField) as error:
            read("chat", cache_salt=value)
        assert error.value.path == "$.cache_salt"
