"""Files of few bits are foreign input: whatever is damaged is refused in one line that names the layer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save, save_file

from engine.errors import ModelError
from engine.model_config.fields import Fields
from engine.quantization import nf4
from engine.quantization.packed import decoded
from engine.weights.checkpoint import Checkpoint
from tests.engine.quantization.published_formats import PUBLISHED

SHAPE = (16, 128)


def read(folder: Path, config: dict[str, object], parts: dict[str, torch.Tensor]) -> torch.Tensor:
    """The weight of a layer with these tensors."""
    save_file({f"layer.{part}": tensor.contiguous() for part, tensor in parts.items()}, folder / "model.safetensors")
    with Checkpoint(folder, Fields(folder, dict(config))) as checkpoint:
        packed = checkpoint.packed("layer.weight", SHAPE)
        if packed is None:  # a plain one in its place, which is looked at when it is loaded
            plain = torch.empty(SHAPE)
            checkpoint.load("layer.weight", plain)
            return plain
        return decoded(packed)


def read_or_refused(
    folder: Path, config: dict[str, object], parts: dict[str, torch.Tensor]
) -> tuple[torch.Tensor | None, str]:
    try:
        return read(folder, config, parts), ""
    except ModelError as error:
        return None, str(error)


def written(fmt: str) -> tuple[dict[str, object], dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    config, write = PUBLISHED[fmt]
    return config, write(*SHAPE)[0]


UNUSED = {"input_scale", "input_global_scale"}
"""Of activations, which are not quantized."""
DAMAGE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as 64-bit floats": lambda tensor: tensor.double(),
    "as 64-bit integers": lambda tensor: tensor.long(),
    "as truth values": lambda tensor: tensor.bool(),
    "one dimension more": lambda tensor: tensor[None],
    "twice": lambda tensor: torch.cat([tensor.flatten()] * 2),
    "a row less": lambda tensor: tensor.flatten()[:0] if tensor.dim() == 0 else tensor[:-1],
    "nothing": lambda tensor: tensor.flatten()[:0],
}


@pytest.mark.parametrize("fmt", PUBLISHED)
def test_each_tensor_damaged_or_missing_is_refused_or_harmless(fmt: str, tmp_path: Path):
    config, parts = written(fmt)
    whole = read(tmp_path, config, parts)
    refused = 0
    for part, tensor in parts.items():
        for change in (*DAMAGE.values(), None):
            damaged = {name: each for name, each in parts.items() if name != part}
            if change is not None:
                damaged[part] = change(tensor)
            weight, said = read_or_refused(tmp_path, config, damaged)
            if weight is None:
                refused += part not in UNUSED
                assert "layer" in said
                assert "\n" not in said
                continue
            # Scales in another floating type, or all groups in order: the same weight.
            assert weight.shape == SHAPE
            assert weight.isfinite().all()
            if part in UNUSED:
                assert torch.equal(weight, whole)
    assert refused > 3 * len(parts.keys() - UNUSED)


def change(part: str, **fields: Any) -> Callable[[dict[str, torch.Tensor]], None]:
    """Change fields of the JSON beside a weight of bitsandbytes."""

    def changed(parts: dict[str, torch.Tensor]) -> None:
        state = {**json.loads(bytes(parts[part].tolist())), **fields}
        parts[part] = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)

    return changed


def put(part: str, value: Any, at: int = 0) -> Callable[[dict[str, torch.Tensor]], None]:
    def changed(parts: dict[str, torch.Tensor]) -> None:
        parts[part] = parts[part].clone()
        parts[part].view(-1)[at] = value

    return changed


NF4_STATE, FP4_STATE = (f"weight.quant_state.bitsandbytes__{kind}" for kind in nf4.KINDS)


@pytest.mark.parametrize(
    ("fmt", "damage", "message"),
    [
        ("nvfp4 modelopt", put("weight_scale_2", torch.nan), "the tensor's scale is not a finite number above 0"),
        ("nvfp4 modelopt", put("weight_scale_2", 0.0), "the tensor's scale is not a finite number above 0"),
        ("nvfp4 modelopt", put("weight_scale_2", -1.0), "the tensor's scale is not a finite number above 0"),
        ("nvfp4 modelopt", put("weight_scale_2", 3e38), "a weight would not be finite"),
        ("nvfp4 modelopt", put("weight_scale", -2.0), "scales of blocks are not all positive"),
        ("nvfp4 modelopt", put("weight_scale", torch.nan), "scales are not all finite"),
        ("nvfp4 modelopt", lambda parts: parts.update(pre_quant_scale=torch.ones(128)), "pre_quant_scale"),
        ("nvfp4 compressed", put("weight_global_scale", 0.0), "the tensor's scale is not a finite number above 0"),
        ("mxfp4 compressed", put("weight_scale", 255), "scales are not all finite"),
        ("mxfp4 compressed", put("weight_scale", 254), "a weight would not be finite"),
        ("gptq act-order", put("g_idx", 4), "g_idx does not give one of 4 groups"),
        ("gptq act-order", put("g_idx", -1), "g_idx does not give one of 4 groups"),
        ("gptq", put("scales", torch.inf), "scales are not all finite"),
        ("int4 g32 with zeros", put("weight_shape", 1 << 40), "do not fit a weight of 1099511627776 x 128"),
        ("int4 g32 with zeros", put("weight_shape", -(1 << 40), 1), "words for -1099511627776 inputs"),
        ("nf4", put("weight.quant_map", 2.0), "quant_map is not a table of 16 numbers from −1 to 1"),
        ("nf4", put("weight.quant_map", torch.nan), "quant_map is not a table of 16 numbers"),
        ("nf4", put("weight.nested_absmax", torch.nan), "scales are not all finite"),
        ("nf4", change(NF4_STATE, blocksize=0), "blocksize 0"),
        ("nf4", change(NF4_STATE, blocksize=96), "128 inputs are not whole blocks of 96"),
        ("nf4", change(NF4_STATE, nested_blocksize=None), "its own scales do not fit them"),
        ("nf4", change(NF4_STATE, nested_blocksize=True), "nested_blocksize True are not sizes"),
        ("nf4", change(NF4_STATE, nested_offset="x"), "nested_offset 'x' is not a number"),
        ("nf4", change(NF4_STATE, shape=[16, 128, 1]), "is not outputs and inputs"),
        ("nf4", change(NF4_STATE, shape=[1 << 50, 128]), "is not outputs and inputs"),
        ("nf4", change(NF4_STATE, shape=[32, 64]), r"has shape \[32, 64\], the configuration says \[16, 128\]"),
        ("nf4", change(NF4_STATE, quant_type="fp4"), "does not say quant_type 'nf4'"),
        ("fp4 table", put(FP4_STATE, 200), "quant_state is not JSON"),
        ("fp4 table", lambda parts: parts.pop(FP4_STATE), "neither NVFP4's weight_scale_2 nor bitsandbytes'"),
    ],
)
def test_what_is_wrong_is_named(
    fmt: str, damage: Callable[[dict[str, torch.Tensor]], object], message: str, tmp_path: Path
):
    config, parts = written(fmt)
    damage(parts)
    with pytest.raises(ModelError, match=message):
        read(tmp_path, config, parts)


@given(st.binary(max_size=200))
def test_whatever_lies_beside_a_weight_is_read_or_refused(text: bytes):
    stored = torch.tensor(list(text), dtype=torch.uint8)
    said = "quant_state"
    try:
        nf4.QuantState.read("nf4", stored)
    except ValueError as error:
        said = str(error)
    assert "quant_state" in said
    assert "\n" not in said


def test_json_that_is_nested_deeply_is_refused():
    with pytest.raises(ValueError, match="quant_state is not JSON"):
        nf4.QuantState.read("nf4", torch.tensor(list(b"[" * 4000), dtype=torch.uint8))


@given(st.integers(0, 400), st.integers(0, 255))
def test_a_file_cut_or_changed_at_any_byte_never_ends_in_a_traceback(tmp_path_factory: Any, at: int, byte: int):
    """Of the tensors' bytes, whose header the library reads."""
    config, parts = written("nf4")
    content = bytearray(save({f"layer.{part}": tensor.contiguous() for part, tensor in parts.items()}))
    content[-1 - at] = byte
    folder = tmp_path_factory.mktemp("changed")
    (folder / "model.safetensors").write_bytes(content)
    said, weight = "layer", torch.zeros(SHAPE)
    with Checkpoint(folder, Fields(folder, dict(config))) as checkpoint:
        try:
            packed = checkpoint.packed("layer.weight", SHAPE)
            assert packed is not None
            weight = decoded(packed)
        except ModelError as error:
            said = str(error)
    assert "layer" in said
    assert weight.isfinite().all()


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        (4, {"group_size": 64}),
        (3, {"group_size": 64}),  # as many as 128 inputs have in equal parts, of another size
        (3, {"group_size": 48}),  # whose last group is cut short
        (2, {"group_size": -1}),
        (2, {"strategy": "channel"}),
        (2, {"strategy": "group"}),
        (2, {"group_size": 10**30}),
        (2, {"group_size": "64"}),
    ],
)
def test_packed_integers_whose_scales_are_not_of_the_group_size_are_refused(
    groups: int, said: dict[str, object], tmp_path: Path
) -> None:
    parts = {
        "weight_packed": torch.zeros(16, 16, dtype=torch.int32),
        "weight_scale": torch.ones(16, groups),
        "weight_shape": torch.tensor(SHAPE),
    }
    weights = {"num_bits": 4, **said}
    config = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}
    weight, message = read_or_refused(tmp_path, config, parts)
    assert weight is None
    assert "group_size" in message
    right = {**config, "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 128 // groups}}}}
    if 128 % groups == 0:
        assert read_or_refused(tmp_path, right, parts)[0] is not None


@pytest.mark.parametrize("size", [1 << 62, 1 << 70])
def test_a_group_size_that_is_none_is_named(size: int, tmp_path: Path) -> None:
    config, parts = written("gptq")
    del parts["g_idx"]
    weight, message = read_or_refused(tmp_path, {**config, "group_size": size}, parts)
    assert weight is None
    assert "group_size" in message


def test_a_block_of_scales_may_be_longer_than_they_are() -> None:
    """By what a file says: nothing of that size is made."""
    table, scales = torch.linspace(-1, 1, 256), torch.ones(1)
    nested = (table, scales)
    states = [nf4.QuantState("nf4", SHAPE, 64, size, 0.0) for size in (256, 1 << 39)]
    codes, few = torch.zeros(SHAPE[0] * SHAPE[1] // 2, 1, dtype=torch.uint8), torch.linspace(-1, 1, 16)
    absmax = torch.full((SHAPE[0] * 2,), 255, dtype=torch.uint8)
    usual, longest = (decoded(nf4.stored(codes, few, absmax, state, nested)) for state in states)
    assert torch.equal(usual, longest)
