"""What loading takes: tied weights are held once, pages of files are let go, damaged files are refused."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import ModelError
from engine.layers.embedding import VOCABULARY_MULTIPLE, Embedding, Head
from engine.layers.linear import Tiling, best_tiling
from engine.layers.packed_rows import packed_rows
from engine.models.registry import load_model, read_config
from engine.weights.checkpoint import Checkpoint
from tests.engine.conftest import write_model
from tests.fast import examples

MIB = 1 << 20


def resident(kind: str) -> int:
    """What this process has in memory, in bytes: `RssAnon` or `RssFile`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{kind}:")) * 1024


LOAD = """
import sys, torch
from pathlib import Path
from engine.layers.linear import best_tiling
from engine.models.registry import load_model, read_config
from tests.engine.weights.test_loading import resident

like, models = torch.zeros(()), []
torch.set_num_threads(1)
for folder in map(Path, sys.argv[1:]):
    before = resident("RssAnon")
    models.append(load_model(folder, read_config(folder), like, best_tiling(like), 64))
print(resident("RssAnon") - before)
"""


def test_tied_weights_are_held_once(tmp_path: Path):
    """In a process of its own: what this one has freed before would hide what is allocated.

    A small one is loaded first, for what the libraries take at their first use.
    """
    small = write_model(tmp_path / "small", tie_word_embeddings=True, hidden_size=64)
    folder = write_model(tmp_path / "model", tie_word_embeddings=True, hidden_size=64)
    tensors = load_file(folder / "model.safetensors")
    rows = 1 << 20
    tensors["model.embed_tokens.weight"] = torch.zeros(rows, 64, dtype=torch.bfloat16)
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": rows}))
    done = subprocess.run([sys.executable, "-c", LOAD, str(small), str(folder)], check=True, stdout=subprocess.PIPE)
    assert int(done.stdout) < 1.3 * rows * 64 * 4


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [48, 100, 1024])
def test_rows_of_a_tied_weight_are_the_stored_ones(hidden: int):
    vocabulary = (1 << 22) // hidden // VOCABULARY_MULTIPLE * VOCABULARY_MULTIPLE + 3 * VOCABULARY_MULTIPLE
    weight = torch.randn(vocabulary, hidden, generator=torch.Generator().manual_seed(1))
    expected = weight.clone()
    with torch.inference_mode():
        embedding = Embedding(weight, vocabulary)
        head = Head(embedding, best_tiling(weight))
        embedding.read_from(head.linear)
        tokens = torch.cat([torch.tensor([0, vocabulary - 1, 0]), torch.randperm(vocabulary)[:3000]])
        assert torch.equal(embedding(tokens), expected[tokens])
        assert torch.equal(embedding(tokens[:1]), expected[tokens[:1]])
        assert (embedding.weight.dtype, embedding.weight.shape[1]) == (torch.float32, hidden)


def test_rows_that_do_not_lie_as_thought_are_not_read_from_there():
    """An order that is not found out, or that another weight has, is noticed before it is relied on."""
    weight = torch.randn(1024, 64, generator=torch.Generator().manual_seed(1))
    head = Head(Embedding(weight, 1024), Tiling(1))
    other = weight.clone()
    other[-1, -1] += 1
    kept = head.linear.weight
    if kept.is_mkldnn:
        assert packed_rows(kept, other) is None
    assert packed_rows(weight, weight) is None, "a weight that is not packed has no such order"


def test_pages_of_files_are_let_go_while_loading(tmp_path: Path):
    count, elements = 12, 16 * MIB // 2
    save_file(
        {f"part{index}": torch.full((elements,), index / 8, dtype=torch.bfloat16) for index in range(count)},
        tmp_path / "model.safetensors",
    )
    into = torch.empty(elements)
    before, most = resident("RssFile"), 0
    with Checkpoint(tmp_path) as checkpoint:
        for index in range(count):
            checkpoint.load(f"part{index}", into)
            assert into[0] == into[-1] == index / 8
            most = max(most, resident("RssFile") - before)
        held = [checkpoint.read(f"part{index}") for index in range(count)]
        assert [float(part[-1]) for part in held] == [index / 8 for index in range(count)], "what is looked at stays"
    assert most < 110 * MIB


def load(folder: Path) -> None:
    load_model(folder, read_config(folder), torch.zeros(()), Tiling(), 64)


@pytest.mark.parametrize("name", ["model.embed_tokens", "model.layers.1.mlp.up_proj", "model.layers.0.input_layernorm"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_no_numbers_are_named(name: str, value: float, tmp_path: Path):
    folder = write_model(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    tensors[f"{name}.weight"].view(-1)[-1] = value
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError, match=rf"tensor {name}\.weight has values that are not finite"):
        load(folder)


def test_a_file_that_becomes_shorter_while_it_is_read_is_refused(tmp_path: Path):
    """It is no signal that ends the process."""
    file = tmp_path / "model.safetensors"
    save_file({"first": torch.ones(MIB), "last": torch.ones(MIB)}, file)
    with Checkpoint(tmp_path) as checkpoint:
        os.truncate(file, file.stat().st_size - 4096)
        assert checkpoint.read("first").sum() == MIB
        with pytest.raises(ModelError, match=r"model.safetensors: has become shorter"):
            checkpoint.read("last")
    for size in (file.stat().st_size, 100, 8, 7, 0):
        os.truncate(file, size)
        with pytest.raises(ModelError, match=r"model.safetensors: is not a readable safetensors file"):
            Checkpoint(tmp_path)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float64, torch.float8_e4m3fn]
)
def test_tensors_of_any_shape_are_read_as_they_were_written(tmp_path: Path, dtype: torch.dtype):
    shapes: list[tuple[int, ...]] = [(), (0,), (3, 0), (1,), (7, 5), (2, 3, 4)]
    written = {str(shape): (torch.arange(math.prod(shape)) % 2).view(shape).to(dtype) for shape in shapes}
    save_file(written, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with Checkpoint(tmp_path) as checkpoint:
        for name, tensor in written.items():
            read = checkpoint.read(name)
            assert (read.dtype, read.shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(read.to(torch.float64), tensor.to(torch.float64))


def test_a_header_with_any_byte_changed_is_read_or_refused(tmp_path: Path):
    folder = write_model(tmp_path / "model")
    whole = bytearray((folder / "model.safetensors").read_bytes())
    header = 8 + int.from_bytes(whole[:8], "little")
    chance = random.Random(5)
    refused = 0
    for _ in range(examples(300)):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(header)] = chance.choice([0, 34, 44, 48, 57, 91, 123, 125, chance.randrange(256)])
        (folder / "model.safetensors").write_bytes(damaged)
        said = ""
        try:
            load(folder)
        except ModelError as error:
            said = str(error)
        assert "\n" not in said
        refused += bool(said)
    assert refused
