"""What models' published files say beside the weights: several chat templates, end tokens, contexts, opening tokens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, processors

from engine.grammar.llguidance_grammar import end_tokens
from engine.models.registry import read_config
from gateway.dialects.openai import chat_request
from gateway.served_models.served_model import ModelFolderError, ServedModel, load_served_model
from prompt_cache.model_digest import model_digest, text_digest
from tests.gateway.conversation.family_models import family_folder, source_of
from tests.gateway.conversation.test_family_templates import chat
from tests.gateway.stack import running_stack
from tests.gateway.tiny_model import TEMPLATE, make_model_folder

FAMILY = "hermes-3"
"""The family that was published with `default` and `tool_use`."""
TOOL_USE = source_of(FAMILY)
RAG = "{{- raise_exception('rag is for documents') -}}"


def write_list(folder: Path) -> None:
    """As Hermes 2 Pro and Command R were published."""
    (folder / "chat_template.jinja").unlink()
    named = {"default": TEMPLATE, "tool_use": TOOL_USE, "rag": RAG}
    write_tokenizer_config(folder, [{"name": name, "template": source} for name, source in named.items()])


def write_files(folder: Path) -> None:
    """As transformers saves the same today."""
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    others = folder / "additional_chat_templates"
    others.mkdir()
    for name, source in (("tool_use", TOOL_USE), ("rag", RAG)):
        (others / f"{name}.jinja").write_text(source)
    write_tokenizer_config(folder, RAG)


def write_file_over_list(folder: Path) -> None:
    """A file takes the place of all that the tokenizer's configuration has."""
    write_list(folder)
    (folder / "chat_template.jinja").write_text(TOOL_USE)


def write_tokenizer_config(folder: Path, template: object) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"chat_template": template, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_list, write_files, write_file_over_list])
@pytest.mark.parametrize("tools", [True, False], ids=["tools", "none"])
def test_the_template_is_the_one_that_transformers_takes(
    tmp_path: Path, write: Callable[[Path], None], tools: bool
) -> None:
    from transformers import AutoTokenizer

    folder = family_folder(tmp_path / "model", FAMILY)
    write(folder)
    body = chat() if tools else {**chat(), "messages": chat()["messages"][:2]}
    body = json.loads(json.dumps(body).replace("<|end|>", "END").replace("<tool_call>!", "call!"))
    if not tools:
        del body["tools"]
    theirs = AutoTokenizer.from_pretrained(folder)
    messages = json.loads(json.dumps(body["messages"]))
    for call in (call for message in messages for call in message.get("tool_calls") or ()):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    expected = theirs.apply_chat_template(messages, tools=body.get("tools"), tokenize=False, add_generation_prompt=True)
    generation = chat_request.parse(json.dumps(body).encode()).generation
    model = load_served_model(folder)
    rendered = model.template.render(generation.turns, generation.tools)
    assert "".join(segment.text for segment in rendered.segments) == expected
    assert model.output_format == "hermes"


def test_the_digests_cover_the_additional_templates(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "model")
    before = text_digest(folder), model_digest(folder, "float32")
    write_files(folder)
    after = text_digest(folder), model_digest(folder, "float32")
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(TOOL_USE + " ")
    changed = text_digest(folder), model_digest(folder, "float32")
    assert len({*before, *after, *changed}) == 6


@pytest.mark.parametrize("template", [[{"name": "tool_use", "template": TOOL_USE}], [], [3], {"default": TEMPLATE}])
def test_a_list_without_a_default_is_refused(tmp_path: Path, template: object) -> None:
    folder = make_model_folder(tmp_path / "model")
    (folder / "chat_template.jinja").unlink()
    write_tokenizer_config(folder, template)
    with pytest.raises(ModelFolderError, match="has no chat template"):
        load_served_model(folder)


# ---------------------------------------------------------------- end tokens


@pytest.mark.parametrize("written", ["<|user|>", {"content": "<|user|>", "lstrip": False}])
def test_the_tokenizers_end_token_ends_an_answer_too(tmp_path: Path, model: ServedModel, written: object) -> None:
    """Where the other files name another one, as fine-tuned models' do that were saved without their generation
    configuration."""
    folder = make_model_folder(tmp_path / "model")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "eos_token": written}))
    ends = (*model.tokenizer.literal("<|end|>"), *model.tokenizer.literal("<|user|>"))
    assert load_served_model(folder).stop_tokens == end_tokens(folder) == ends


# ---------------------------------------------------------------- contexts

YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LINEAR = {"type": "linear", "factor": 4.0}
FACTORS = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
CONTEXTS: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    # Name → (config.json, tokenizer_config.json, context): figures of published files and model cards.
    "Qwen2.5 with YaRN as its card says": (
        {"model_type": "qwen2", "max_position_embeddings": 32_768, "rope_scaling": YARN},
        {"model_max_length": 131_072},
        131_072,
    ),
    "Qwen3 with YaRN as its card says": (
        {"model_type": "qwen3", "max_position_embeddings": 40_960, "rope_scaling": {**YARN, "rope_type": "yarn"}},
        {"model_max_length": 131_072},
        131_072,
    ),
    "the same in version 5 style": (
        {
            "model_type": "qwen3",
            "max_position_embeddings": 40_960,
            "rope_parameters": {**YARN, "rope_type": "yarn", "rope_theta": 1e6},
        },
        {},
        131_072,
    ),
    "YaRN without the original context": (
        {
            "model_type": "llama",
            "max_position_embeddings": 4096,
            "rope_scaling": {"rope_type": "yarn", "factor": 16.0},
        },
        {"model_max_length": 4096},
        65_536,
    ),
    "gpt-oss": (
        {
            "model_type": "gpt_oss",
            "max_position_embeddings": 131_072,
            "rope_scaling": {**YARN, "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
        },
        {},
        131_072,
    ),
    "DeepSeek-V3": (
        {
            "model_type": "deepseek_v3",
            "max_position_embeddings": 163_840,
            "rope_scaling": {**YARN, "factor": 40, "original_max_position_embeddings": 4096},
        },
        {"model_max_length": 16_384},
        163_840,
    ),
    "Vicuna 1.5 16k": (
        {"model_type": "llama", "max_position_embeddings": 4096, "rope_scaling": LINEAR},
        {"model_max_length": 16_384},
        16_384,
    ),
    "linear without a word of the tokenizer": (
        {"model_type": "llama", "max_position_embeddings": 2048, "rope_scaling": LINEAR},
        {"model_max_length": 1e30},
        8192,
    ),
    "DeepSeek-Coder 33B, multiplied already": (
        {"model_type": "llama", "max_position_embeddings": 16_384, "rope_scaling": LINEAR},
        {"model_max_length": 16_384},
        16_384,
    ),
    "Llama 3.2": (
        {"model_type": "llama", "max_position_embeddings": 131_072, "rope_scaling": LLAMA3},
        {"model_max_length": 131_072},
        131_072,
    ),
    "Gemma 3": (
        {
            "model_type": "gemma3_text",
            "max_position_embeddings": 131_072,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        {"model_max_length": 1e30},
        131_072,
    ),
    "Phi-3 128k": (
        {
            "model_type": "phi3",
            "max_position_embeddings": 131_072,
            "original_max_position_embeddings": 4096,
            "rope_scaling": {"type": "longrope", **FACTORS},
        },
        {"model_max_length": 131_072},
        131_072,
    ),
}


@pytest.mark.parametrize("published", CONTEXTS)
def test_a_long_rope_lengthens_the_context(tmp_path: Path, published: str) -> None:
    """In the gateway as in the engine, which do not import each other."""
    folder = make_model_folder(tmp_path / "model")
    config, tokenizer, context = CONTEXTS[published]
    (folder / "config.json").write_text(json.dumps(config))
    before = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(before | tokenizer))
    assert load_served_model(folder).context_tokens == context
    assert read_config(folder).context_tokens == context


# ---------------------------------------------------------------- texts to continue


def folder_with_opening(path: Path, template_of: Path) -> Path:
    """A model whose tokenizer puts BOS before each text, as Llama's and Mistral's do."""
    folder = path / "model"
    shutil.copytree(template_of, folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    begin = tokenizer.token_to_id("<|begin|>")
    tokenizer.post_processor = processors.TemplateProcessing("<|begin|> $A", None, [("<|begin|>", begin)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


async def test_a_text_begins_with_one_bos_or_with_none_where_the_client_wants_none(
    tmp_path: Path, model_folder: Path, stocked_sqlite_url: str
) -> None:
    folder = folder_with_opening(tmp_path, model_folder)
    async with running_stack(stocked_sqlite_url, tmp_path / "data", folder) as stack:
        headers = {"authorization": f"Bearer {stack.key}"}
        tokenizer = load_served_model(folder).tokenizer
        (begin,), text = tokenizer.literal("<|begin|>"), tokenizer.literal("The quick brown fox")
        cases: list[tuple[dict[str, Any], list[int]]] = [
            ({"prompt": "The quick brown fox"}, [begin, *text]),
            ({"prompt": "<|begin|>The quick brown fox"}, [begin, *text]),
            ({"prompt": "The quick brown fox", "add_special_tokens": False}, text),
            ({"prompt": "<|begin|>The quick brown fox", "add_special_tokens": False}, [begin, *text]),
            ({"prompt": "The quick brown fox", "add_special_tokens": None}, [begin, *text]),
            ({"prompt": [begin, begin, *text]}, [begin, begin, *text]),
        ]
        for body, expected in cases:
            stack.say("Yes.")
            answer = await stack.http.post("/v1/completions", json={"model": "tiny", **body}, headers=headers)
            assert answer.status_code == 200, answer.text
            assert [*stack.replica.runs.values()][-1].generate.tokens == expected
        refused = {"model": "tiny", "prompt": "a", "add_special_tokens": "no"}
        answer = await stack.http.post("/v1/completions", json=refused, headers=headers)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].endswith("add_special_tokens")
