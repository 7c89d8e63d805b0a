"""What would change a quantized model's answer, and what is missing or damaged, is refused by its name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import ModelError
from engine.layers.linear import Tiling
from engine.model_config.fields import Fields
from engine.models.registry import load_model, read_config
from engine.quantization import fp4, fp8
from engine.weights.checkpoint import Checkpoint
from tests.engine.quantization.stored_checkpoints import FORMATS, compressed, load, pack, stored
from tests.fast import only_fast


def test_what_is_missing_or_unknown_is_named(tmp_path: Path):
    folder, _ = stored(tmp_path, FORMATS["awq"], "awq")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["quant_method"] = "novel"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"config\.json: quant_method 'novel' is not supported \(supported: awq, "):
        load(folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.scales"]
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": FORMATS["awq"]}))
    with pytest.raises(ModelError, match=r"tensor model\.layers\.1\.mlp\.up_proj\.scales is missing"):
        load(folder)


def test_floats_of_4_bits_that_are_not_mxfp4_are_named(tmp_path: Path):
    parts = {"packed": torch.zeros(8, 32, dtype=torch.uint8), "scale": torch.ones(8, 4).to(torch.float8_e4m3fn)}
    save_file({f"layer.weight_{part}": tensor for part, tensor in parts.items()}, tmp_path / "model.safetensors")
    with (
        Checkpoint(tmp_path) as checkpoint,
        pytest.raises(ModelError, match=r"layer\.weight: MXFP4 has .* not torch\.uint8, torch\.float8"),
    ):
        checkpoint.load("layer.weight", torch.empty(8, 64))
    parts["scale"] = torch.zeros(8, 4, dtype=torch.uint8)
    save_file({f"layer.weight_{part}": tensor for part, tensor in parts.items()}, tmp_path / "model.safetensors")
    with (
        Checkpoint(tmp_path) as checkpoint,
        pytest.raises(ModelError, match=r"\[8, 4\] do not fit values of \[8, 32\]"),
    ):
        checkpoint.load("layer.weight", torch.empty(8, 64))


@pytest.mark.parametrize(
    ("fmt", "changes", "message"),
    [
        (
            "gptq",
            {"checkpoint_format": "marlin"},
            "field quantization_config.checkpoint_format 'marlin' is not supported",
        ),
        ("gptq", {"is_marlin_format": True}, "field quantization_config.is_marlin_format True is not supported"),
        ("gptq", {"group_size": 16}, "scales for 2 groups do not fit 64 inputs with group_size 16"),
        ("gptq", {"group_size": -1}, "scales for 2 groups do not fit 64 inputs with group_size -1"),
        ("awq", {"group_size": 48}, "scales for 2 groups do not fit 128 inputs with group_size 48"),
        ("awq", {"version": None, "format": "gemv"}, "4 bits and version gemm only"),
        ("block", {"weight_block_size": [48]}, r"field weight_block_size must be two sizes, is \[48\]"),
        ("channel", {"transform_config": {"config_groups": {"R1": {"type": "hadamard"}}}}, "config.transform_config"),
        ("channel", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "quantization_config.sparsity_config"),
        ("channel", {"format": "marlin-24"}, "field quantization_config.format 'marlin-24' is not supported"),
        (
            "channel",
            {"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"},
            "quantization_config.quant_algo 'NVFP4_AWQ'",
        ),
        ("tensor", {"quant_method": "bitsandbytes", "load_in_8bit": True}, "config.load_in_8bit True is not supported"),
        ("tensor", {"quant_method": "hqq"}, "quant_method 'hqq' is not supported"),
    ],
)
def test_a_quantization_that_would_change_the_answer_is_refused(
    fmt: str, changes: dict[str, object], message: str, tmp_path: Path
):
    folder, _ = stored(tmp_path, {**FORMATS[fmt], **changes}, fmt)
    with pytest.raises(ModelError, match=message):
        load(folder)


@pytest.mark.parametrize("key", ["checkpoint_format", "format"])
def test_the_second_version_of_gptq_is_read_under_either_name(key: str, tmp_path: Path):
    words = torch.tensor([[pack([9] * 8)] * 8] * 2, dtype=torch.int32)
    zeros, scales = torch.tensor([[pack([7] * 8)]], dtype=torch.int32), torch.ones(1, 8)
    save_file({"layer.qweight": words, "layer.qzeros": zeros, "layer.scales": scales}, tmp_path / "model.safetensors")
    weight = torch.empty(8, 16)
    with Checkpoint(tmp_path, Fields(tmp_path, {"quant_method": "gptq", "bits": 4, key: "gptq_v2"})) as checkpoint:
        checkpoint.load("layer.weight", weight)
    assert weight.unique().tolist() == [2.0]


def test_inputs_in_an_order_that_nothing_says_are_refused(tmp_path: Path):
    folder, _ = stored(tmp_path, FORMATS["gptq"], "gptq")
    tensors = load_file(folder / "model.safetensors")
    save_file({name: each for name, each in tensors.items() if "g_idx" not in name}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"q_proj\.weight: desc_act is true and g_idx.* is missing"):
        load(folder)
    group = {"actorder": "group", "num_bits": 4, "strategy": "group", "group_size": 32}
    packed, config, _ = compressed((44, 256), torch.float32, "pack-quantized", strategy="group", group_size=32)
    for changes, message in (
        (group, "actorder is group and weight_g_idx.* is missing"),
        ({"num_bits": 4, "symmetric": False}, "symmetric is false and weight_zero_point is missing"),
    ):
        config["config_groups"] = {"group_0": {"weights": changes}}
        kept = {f"layer.{name}": value for name, value in packed.items() if name not in {"weight_zero_point"}}
        save_file(kept, tmp_path / "model.safetensors")
        with (
            Checkpoint(tmp_path, Fields(tmp_path, config)) as checkpoint,
            pytest.raises(ModelError, match=message),
        ):
            checkpoint.load("layer.weight", torch.empty(44, 256))


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_scales_that_are_no_numbers_are_named(fmt: str, value: float, tmp_path: Path):
    folder, _ = stored(tmp_path, FORMATS[fmt], fmt)
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if "layers.1.mlp.up_proj" in name and "scale" in name)
    tensors[name].view(-1)[-1] = value
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.up_proj\.weight: scales are not all finite"):
        load(folder)


def test_values_and_scales_of_few_bits_that_are_no_numbers_are_named():
    values = torch.zeros(8, 64).to(torch.float8_e4m3fn)
    values.view(torch.uint8)[3, 5] = 0xFF
    with pytest.raises(ValueError, match="values are not all finite"):
        fp8.stored(values, torch.ones(8))
    scales = torch.full((8, 2), 127, dtype=torch.uint8)
    fp4.stored_mxfp4(torch.zeros(8, 32, dtype=torch.uint8), scales)
    scales[7, 1] = 255
    with pytest.raises(ValueError, match="scales are not all finite"):
        fp4.stored_mxfp4(torch.zeros(8, 32, dtype=torch.uint8), scales)


DAMAGE = {
    "as 64-bit floats": lambda tensor: tensor.double(),
    "as bytes": lambda tensor: tensor.to(torch.uint8),
    "as 64-bit integers": lambda tensor: tensor.long(),
    "as truth values": lambda tensor: tensor.bool(),
    "flat": lambda tensor: tensor.flatten(),
    "one number": lambda tensor: tensor.flatten()[0].clone(),
    "one dimension more": lambda tensor: tensor[None],
    "turned": lambda tensor: tensor.t() if tensor.dim() == 2 else tensor.flip(0),
    "a row less": lambda tensor: tensor[:-1],
    "a column less": lambda tensor: tensor[..., :-1],
    "nothing": lambda tensor: tensor[:0],
    "nothing, sideways": lambda tensor: tensor[..., :0],
}


@pytest.mark.slow
@pytest.mark.parametrize("fmt", only_fast("gptq", of=FORMATS))
def test_whatever_is_damaged_is_refused_in_one_line(fmt: str, tmp_path: Path):
    """Never by a traceback: each tensor of a layer in another type or shape, and missing."""
    folder, _ = stored(tmp_path, FORMATS[fmt], fmt)
    whole = load_file(folder / "model.safetensors")
    refused = 0
    for name in [name for name in whole if "layers.1.mlp.down_proj" in name]:
        for change in [*DAMAGE.values(), None]:
            tensors = {other: each for other, each in whole.items() if other != name}
            if change is not None:
                tensors[name] = change(whole[name]).contiguous()
            save_file(tensors, folder / "model.safetensors")
            for weights in ("decoded", "packed"):
                said = ""
                try:
                    load_model(folder, read_config(folder), torch.zeros(()), Tiling(), 64, weights=weights)
                except ModelError as error:
                    said = str(error)
                assert not said or "layers.1.mlp.down_proj" in said
                assert "\n" not in said
                refused += bool(said)
    assert refused > 2 * len(DAMAGE)
