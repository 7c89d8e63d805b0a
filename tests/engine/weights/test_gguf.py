"""A model in a GGUF file says what the folder says that holds the numbers of the file: every family, dense and with
experts, decoded and packed. What contradicts itself or is not supported is refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.errors import ModelError
from engine.grammar.llguidance_grammar import end_tokens
from engine.layers.linear import best_tiling
from engine.models.registry import load_model, read_config
from engine.startup.assembly import served_name
from prompt_cache.model_digest import model_digest, text_digest
from tests.engine.conftest import generate, make_bench
from tests.engine.families import by_transformers, write_family
from tests.engine.gguf_files import dequantized_twin, write_gguf
from tests.fast import only_fast, only_some

PROMPT = [(7 * i * i + 3 * i) % 131 for i in range(90)]
SIZES = {"hidden_size": 64, "intermediate_size": 64}
FULL = {"use_sliding_window": False, "sliding_window": None}
NO_BIAS: dict[str, Any] = {"attention_bias": False}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama 3": {},
    "llama tied": {"hidden_act": "silu"},
    "llama yarn": {},
    "llama linear": {},
    "mistral": {},
    "mistral full": {},
    "qwen2": FULL,
    "qwen3": {},
    "phi3": {},
    "phi3 longrope": {},
    "mixtral": {},
    "qwen3 moe": {**FULL, "moe_intermediate_size": 64},
    "gemma2": {**NO_BIAS, "query_pre_attn_scalar": 16},
    "gemma3": {"layer_types": ["sliding_attention"] * 2, "query_pre_attn_scalar": 16},
}
"""What a GGUF file can say of each family of the tests."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("gguf")
    yield folder
    shutil.rmtree(folder)


def plain(name: str, folders: Path, **changes: object) -> Path:
    folder = folders / name
    return folder if folder.exists() else write_family(name, folder, **{**SIZES, **FAMILIES[name], **changes})


def logits(model: Path, **options: Any) -> torch.Tensor:
    return torch.stack(make_bench(model, **options).one(generate("one", PROMPT, 3)).logits)


@pytest.mark.parametrize("name", only_fast("llama 3", "gemma2", of=FAMILIES))
def test_a_family_says_what_transformers_says(name: str, folders: Path, tmp_path: Path):
    folder = plain(name, folders)
    path = write_gguf(folder, tmp_path / "model.gguf", "F32")
    first = make_bench(path).one(generate("one", PROMPT, 1)).logits[0]
    whole = by_transformers(folder, PROMPT)
    assert (first[: whole.shape[1]] - whole[-1]).abs().max() < 2e-4 * whole.abs().max() + 1e-5


@pytest.mark.parametrize("name", only_some("llama", "qwen3 moe", of=FAMILIES, every=2))
def test_a_file_of_few_bits_says_what_its_twin_says(name: str, folders: Path, tmp_path: Path):
    folder = plain(name, folders)
    kinds = {"attn_k": "Q4_0", "ffn_up": "Q5_1", "ffn_down": "Q4_1", "attn_v": "F16", "token_embd": "BF16"}
    path = write_gguf(
        folder,
        tmp_path / "model.gguf",
        lambda tensor, _: next((kind for part, kind in kinds.items() if part in tensor), "Q8_0"),
    )
    twin = dequantized_twin(path, folder, tmp_path / "twin")
    # The rotary tables of both are made from the same numbers.
    config = json.loads((twin / "config.json").read_text())
    derived = {name: value for name, value in read_config(path).fields.fields.items() if "rope" in name}
    (twin / "config.json").write_text(json.dumps({**config, "rope_parameters": None, **derived}))
    expected = logits(path)
    assert torch.equal(logits(twin), expected)
    assert torch.equal(logits(path, weights="packed"), expected)
    assert torch.equal(logits(path, dtype=torch.bfloat16), logits(twin, dtype=torch.bfloat16))


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K"])
def test_a_file_of_k_types_says_what_its_twin_says(kind: str, folders: Path, tmp_path: Path):
    folder = folders / "wide"
    if not folder.exists():
        write_family("llama", folder, hidden_size=256, intermediate_size=256)
    path = write_gguf(folder, tmp_path / "model.gguf", kind)
    twin = dequantized_twin(path, folder, tmp_path / "twin")
    expected = logits(path)
    assert torch.equal(logits(twin), expected)
    assert torch.equal(logits(path, weights="packed"), expected)


def test_a_model_may_lie_in_parts_and_in_a_folder(folders: Path, tmp_path: Path):
    folder = plain("llama", folders)
    whole = write_gguf(folder, tmp_path / "whole.gguf", "Q8_0")
    write_gguf(folder, tmp_path / "parts.gguf", "Q8_0", split_max_tensors=5)
    parts = sorted((tmp_path).glob("parts-*.gguf"))
    assert len(parts) > 2
    assert torch.equal(logits(parts[0]), logits(whole))
    assert served_name(parts[0]) == "parts"
    assert served_name(whole) == "whole"
    (tmp_path / "folder").mkdir()
    for part in parts:
        part.rename(tmp_path / "folder" / part.name)
    inside = tmp_path / "folder"
    assert served_name(inside) == "folder"
    assert torch.equal(logits(inside), logits(whole))
    with pytest.raises(ModelError, match="give the first"):
        read_config(inside / parts[1].name)
    shutil.copy(whole, inside / "another.gguf")
    with pytest.raises(ModelError, match="has 2 GGUF files"):
        read_config(inside)
    (inside / "another.gguf").unlink()
    (inside / parts[2].name).unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        load(inside)


def load(model: Path) -> None:
    like = torch.empty(0)
    load_model(model, read_config(model), like, best_tiling(like), 64)


def test_digests_are_those_of_what_is_in_the_file(folders: Path, tmp_path: Path):
    folder = plain("llama", folders)
    first = write_gguf(folder, tmp_path / "model.gguf", "Q8_0")
    digests = model_digest(first, "float32"), text_digest(first)
    assert digests == (model_digest(first, "float32"), text_digest(first))
    first.unlink()
    write_gguf(folder, first, "Q8_0", changes={"llama.rope.freq_base": 20000.0})
    assert text_digest(first) == digests[1]
    assert model_digest(first, "float32") != digests[0]


def test_end_tokens_are_those_of_the_metadata_and_those_known_by_their_texts(folders: Path, tmp_path: Path):
    path = write_gguf(
        plain("llama", folders),
        tmp_path / "model.gguf",
        changes={
            "tokenizer.ggml.eos_token_id": 5,
            "tokenizer.ggml.eot_token_id": 9,
            "tokenizer.ggml.tokens": [*[chr(33 + at) for at in range(130)], "<|im_end|>"],
            "tokenizer.ggml.token_type": [1] * 130 + [3],
        },
    )
    assert end_tokens(path) == (5, 9, 130)
    assert read_config(path).stop_tokens == (5, 9, 130)


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "another architecture": ({"general.architecture": "mamba"}, "architecture 'mamba' is not supported"),
    "another splitting": ({"tokenizer.ggml.pre": "bloom"}, "tokenizer.ggml.pre 'bloom' is not supported"),
    "another tokenizer": ({"tokenizer.ggml.model": "t5"}, "tokenizer.ggml.model 't5' is not supported"),
    "heads that do not divide": ({"llama.attention.head_count": 6}, "not those of 6 heads"),
    "more layers": ({"llama.block_count": 3}, "model.layers.2"),
    "fewer layers": ({"llama.block_count": 1}, "model.layers.1"),
    "another hidden size": ({"llama.embedding_length": 128}, "token_embd.weight has the shape"),
    "a larger feed-forward": ({"llama.feed_forward_length": 1 << 40}, "intermediate_size"),
    "another vocabulary": ({"llama.vocab_size": 132}, "vocab_size is 132"),
    "no size": ({"llama.embedding_length": None}, "llama.embedding_length is None"),
    "a head that is rotated in part": ({"llama.rope.dimension_count": 8}, "rope.dimension_count is 8"),
    "a scale of residuals": ({"llama.residual_scale": 0.5}, "llama.residual_scale 0.5 is not supported"),
    "another rotary scaling": ({"llama.rope.scaling.type": "ntk"}, "rope.scaling.type 'ntk' is not supported"),
    "a negative theta": ({"llama.rope.freq_base": -1.0}, "rope.freq_base is -1.0"),
    "an end token that is none": ({"tokenizer.ggml.eos_token_id": 500}, "eos_token_id is 500, not one of 131"),
    "kinds of fewer tokens": ({"tokenizer.ggml.token_type": [1, 1]}, "token_type has 2 entries for 131"),
    "a merge of no tokens": ({"tokenizer.ggml.merges": ["! xyz"]}, "merges has '! xyz'"),
    "alignment": ({"general.alignment": 48}, "general.alignment is 48"),
    "parts that are not there": ({"split.count": 3}, "is a part of a model in 3 parts"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_contradictory_or_not_supported_is_refused_by_name(what: str, folders: Path, tmp_path: Path):
    changes, said = REFUSED[what]
    path = write_gguf(plain("llama", folders), tmp_path / "model.gguf", changes=changes)
    with pytest.raises(ModelError) as refused:
        load(path)
    assert said in str(refused.value)
    assert str(tmp_path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_tensors_without_a_place_or_of_another_type_are_refused(folders: Path, tmp_path: Path):
    folder = plain("llama", folders)
    path = tmp_path / "model.gguf"
    for name, kind, said in (
        ("blk.0.attn_sinks.weight", "F32", "no place for tensor model.layers.0.attn_sinks.weight"),
        ("blk.0.attn_q.bias", "F32", "self_attn"),
        ("output.bias", "F32", "tensor output.bias is not known"),
        ("blk.0.extra.weight", "IQ4_NL", "tensor blk.0.extra.weight is of type IQ4_NL, which is not supported"),
    ):
        path.unlink(missing_ok=True)
        write_gguf(folder, path, more={name: (kind, np.ones((64, 64) if kind != "F32" else 64, np.float32))})
        with pytest.raises(ModelError) as refused:
            load(path)
        assert said in str(refused.value)
