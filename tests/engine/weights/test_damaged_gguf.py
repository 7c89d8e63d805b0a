"""A GGUF file is foreign input: 1,000 damaged ones are refused in a line, or are models, in bounded memory and time."""

from __future__ import annotations

import json
import os
import random
import resource
import struct
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from engine.errors import ModelError
from engine.layers.linear import best_tiling
from engine.models.registry import load_model, read_config
from engine.weights.gguf_tensors import GgufTensors
from gateway.served_models.served_model import ModelFolderError, load_served_model
from model_files.gguf_file import GgufModel
from model_files.gguf_tokenizer import tokenizer_json
from model_files.gguf_values import GgufError
from tests.engine.conftest import write_model
from tests.engine.gguf_files import write_gguf

FILES, LONGEST_S, MOST_BYTES = 1000, 20.0, 256 << 20
EXTREMES = (0, 1, 7, 0xFF, 1 << 16, (1 << 31) - 1, 1 << 32, 1 << 40, 1 << 62, (1 << 64) - 1)


def damaged(whole: bytes, header: int, chance: random.Random) -> bytes:
    """A file that is cut off, has flipped bits, other numbers, or a piece twice or not at all."""
    data = bytearray(whole)
    within = header if chance.random() < 0.8 else len(data)
    match chance.randrange(5):
        case 0:
            del data[chance.randrange(within) :]
        case 1:
            for _ in range(chance.choice((1, 1, 3, 30))):
                data[chance.randrange(within)] ^= 1 << chance.randrange(8)
        case 2:
            at = chance.randrange(within - 8)
            data[at : at + 8] = struct.pack("<Q", chance.choice(EXTREMES))
        case 3:
            at = chance.randrange(within - 4)
            data[at : at + 4] = struct.pack("<I", chance.choice(EXTREMES) & 0xFFFFFFFF)
        case 4:
            at, size = chance.randrange(within), chance.randrange(1, 64)
            piece = data[at : at + size]
            data[at : at + size] = piece * chance.choice((0, 2, 3))
    return bytes(data)


def load_weights(model: Path) -> None:
    like = torch.empty(0)
    load_model(model, read_config(model), like, best_tiling(like), 64)


def refusal(load: Callable[[Path], object], model: Path) -> str:
    """What is said of a model that is refused; nothing for one that is loaded."""
    try:
        load(model)
    except (ModelError, ModelFolderError) as error:
        return str(error)
    return ""


def test_1000_damaged_files_are_refused_in_a_line_or_are_models(tmp_path: Path):
    folder = write_model(tmp_path / "plain", vocab_size=300, hidden_size=64, intermediate_size=64)
    changes = {"tokenizer.chat_template": "{{ messages[0]['content'] }}"}
    path = write_gguf(
        folder,
        tmp_path / "whole.gguf",
        lambda _, weight: "Q8_0" if weight.shape[-1] % 32 == 0 else "BF16",
        changes=changes,
    )
    assert not refusal(load_weights, path) + refusal(load_served_model, path)
    whole = path.read_bytes()
    header = gguf.GGUFReader(path).data_offset
    chance, refused = random.Random(11), 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(FILES):
        file = tmp_path / f"damaged-{number}.gguf"
        file.write_bytes(damaged(whole, header, chance))
        began = time.process_time()
        for load in (load_weights, load_served_model):
            said = refusal(load, file)
            assert "\n" not in said
            assert not said or file.name in said
            refused += bool(said)
        assert time.process_time() - began < LONGEST_S
        file.unlink()
    assert refused > FILES // 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_BYTES >> 10


def written(path: Path, values: dict[str, object], tensors: dict[str, np.ndarray]) -> Path:  # type: ignore[type-arg]
    """A GGUF file with these values and tensors alone."""
    writer = gguf.GGUFWriter(path, "qwen3moe")
    for key, value in values.items():
        writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value) if isinstance(value, str) else LIST)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


LIST = gguf.GGUFValueType.ARRAY


def test_what_would_be_many_times_as_large_in_memory_is_refused(tmp_path: Path):
    numbers = written(tmp_path / "numbers.gguf", {"sizes": bytes((1 << 22) + 1)}, {})
    with GgufModel(numbers) as model, pytest.raises(GgufError, match="sizes has 4194305 numbers, more than"):
        model.numbers("sizes")
    factors = written(tmp_path / "factors.gguf", {}, {"rope_freqs.weight": np.ones((1 << 16) + 1, np.float32)})
    with GgufModel(factors) as model, pytest.raises(GgufError, match="not up to 65536 numbers"):
        model.floats("rope_freqs.weight")
    experts = np.ones(((1 << 12) + 1, 1, 1), np.float16)
    with pytest.raises(ModelError, match="not that of up to 4096 experts"):
        GgufTensors(written(tmp_path / "experts.gguf", {}, {"blk.0.ffn_up_exps.weight": experts}))


def test_two_names_of_one_weight_are_refused(tmp_path: Path):
    one = np.ones((1, 1), np.float16)
    for other in ("blk.00.attn_norm.weight", "blk.٠.attn_norm.weight"):
        path = written(tmp_path / "names.gguf", {}, {"blk.0.attn_norm.weight": one, other: one})
        with pytest.raises(ModelError, match=rf"names.gguf: tensor {other} is not known"):
            GgufTensors(path)
    # A part that is not known keeps its name, which may be that of another part's weight.
    path = written(tmp_path / "names.gguf", {}, {"blk.0.attn_norm.weight": one, "blk.0.input_layernorm.weight": one})
    with pytest.raises(
        ModelError, match=r"tensor blk.0.(\w+).weight stands for .*input_layernorm.weight, as tensor blk"
    ):
        GgufTensors(path)


def test_a_file_that_becomes_shorter_while_it_is_read_is_refused(tmp_path: Path):
    """It is no signal that ends the process, whatever is read of it then."""
    values = {"tokenizer.ggml.tokens": [f"token {number}" for number in range(100_000)]}
    path = written(tmp_path / "cut.gguf", values, {"rope_freqs.weight": np.ones(1 << 16, np.float32)})
    size = path.stat().st_size
    with GgufModel(path) as model:
        os.truncate(path, 4096)
        with pytest.raises(GgufError, match=rf"cut.gguf: has become shorter than the {size} bytes"):
            model.elements("tokenizer.ggml.tokens")
        with pytest.raises(GgufError, match=r"cut.gguf: has become shorter"):
            model.floats("rope_freqs.weight")
        path.write_bytes(b"\xff" * size)
        with pytest.raises(GgufError, match=r"cut.gguf: has changed"):
            model.elements("tokenizer.ggml.tokens")


def test_tokens_that_can_be_made_of_two_in_too_many_ways_are_refused(tmp_path: Path):
    text = "".join(chr(0x4E00 + at) for at in range(700))
    tokens = [text[at : at + length] for length in range(1, 65) for at in range(len(text) - length)]
    values = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens}
    scores = {"tokenizer.ggml.scores": [0.0] * len(tokens)}
    path = written(tmp_path / "tokens.gguf", values | scores, {})
    with GgufModel(path) as model, pytest.raises(GgufError, match="more than 1048576 ways"):
        tokenizer_json(model)


def test_more_merges_than_any_vocabulary_has_are_refused(tmp_path: Path):
    values = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": ["a", "b", "ab"]}
    path, count = written(tmp_path / "merges.gguf", values | {"tokenizer.ggml.merges": ["a b"]}, {}), (1 << 20) + 1
    one = struct.pack("<Q", 3) + b"a b"
    whole = path.read_bytes()
    assert whole.count(struct.pack("<Q", 1) + one) == 1
    path.write_bytes(whole.replace(struct.pack("<Q", 1) + one, struct.pack("<Q", count) + one * count))
    with GgufModel(path) as model, pytest.raises(GgufError, match="merges has 1048577 entries, more than"):
        tokenizer_json(model)


def test_an_empty_special_token_moves_no_other(tmp_path: Path):
    tokens, kinds = ["a", "b", "<one>", "", "<two>"], [1, 1, 3, 3, 3]
    values = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": tokens}
    path = written(tmp_path / "tokens.gguf", values | {"tokenizer.ggml.token_type": kinds}, {})
    with GgufModel(path) as model:
        read = Tokenizer.from_str(json.dumps(tokenizer_json(model)))
    assert read.encode("a<two>b<one>").ids == [0, 4, 1, 2]
