"""A GGUF file is foreign input: 1,000 damaged ones are refused in a line, or are models, in bounded memory and time."""

from __future__ import annotations

import random
import resource
import struct
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import torch

from engine.errors import ModelError
from engine.layers.linear import best_tiling
from engine.models.registry import load_model, read_config
from gateway.served_models.served_model import ModelFolderError, load_served_model
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
