"""Quantized weights: read as their formats say, by hand or as the libraries that write them do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.errors import ModelError
from engine.model_config.fields import Fields
from engine.quantization import fp4, fp8, int4
from engine.quantization.encoding import quantized
from engine.quantization.packed import PackedWeight, decoded
from engine.weights.checkpoint import Checkpoint
from tests.engine.quantization.stored_checkpoints import compressed, pack

# ---------------------------------------------------------------- FP8


def test_fp8_scales_of_every_shape():
    weight = torch.tensor([[1.0, 2.0, -4.0], [0.5, 448.0, 0.0]]).to(torch.float8_e4m3fn)
    assert fp8.decode(weight, torch.tensor(0.5)).tolist() == [[0.5, 1.0, -2.0], [0.25, 224.0, 0.0]]
    per_channel = [[2.0, 4.0, -8.0], [1.5, 1344.0, 0.0]]
    assert fp8.decode(weight, torch.tensor([2.0, 3.0])).tolist() == per_channel
    assert fp8.decode(weight, torch.tensor([[2.0], [3.0]])).tolist() == per_channel
    blocks = fp8.decode(weight, torch.tensor([[1.0, 10.0], [100.0, 0.5]]), (1, 2))
    assert blocks.tolist() == [[1.0, 2.0, -40.0], [50.0, 44800.0, 0.0]]
    with pytest.raises(ValueError, match=r"scales of shape \[3\] do not fit"):
        fp8.decode(weight, torch.ones(3))
    with pytest.raises(ValueError, match=r"values of shape \[3\] are not a weight"):
        fp8.decode(weight[0], torch.tensor(0.5))


@pytest.mark.slow
def test_fp8_in_blocks_of_128_as_transformers_decodes_it():
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    torch.manual_seed(0)
    weight = torch.randn(256, 384).to(torch.float8_e4m3fn)
    scales = torch.rand(2, 3) + 0.1
    assert torch.equal(fp8.decode(weight, scales), Fp8Dequantize(None)._dequantize_one(weight, scales))


def test_fp8_made_is_near():
    torch.manual_seed(0)
    weight = torch.randn(40, 64) * torch.logspace(-6, 6, 40)[:, None]
    weight[3] = 0
    again = quantized(weight, "fp8")
    # Three bits behind the point: at most 1/16 off, and for the smallest values of a row a part of its largest.
    assert ((again - weight).abs() <= weight.abs() / 16 + weight.abs().amax(-1, keepdim=True) / 2**17).all()
    assert torch.equal(quantized(again, "fp8"), again)


# ---------------------------------------------------------------- MXFP4


@pytest.mark.slow
def test_mxfp4_as_transformers_decodes_it():
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    torch.manual_seed(0)
    blocks = torch.randint(0, 256, (3, 8, 2, 16), dtype=torch.uint8)
    scales = torch.randint(110, 140, (3, 8, 2), dtype=torch.uint8)
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    ours = [decoded(fp4.stored_mxfp4(*parts)) for parts in zip(blocks.flatten(2), scales, strict=True)]
    assert torch.equal(torch.stack(ours), theirs.transpose(1, 2))


def test_mxfp4_by_hand():
    codes = torch.zeros(1, 16, dtype=torch.uint8)
    codes[0, :3] = torch.tensor([0x21, 0xF7, 0x98])
    values = decoded(fp4.stored_mxfp4(codes, torch.tensor([[128]], dtype=torch.uint8)))
    assert values.shape == (1, 32)
    assert values[0, :6].tolist() == [1.0, 2.0, 12.0, -12.0, -0.0, -1.0]


def test_mxfp4_made_is_the_nearest():
    values = [0.0, 0.24, 0.25, 0.26, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 7.0, -0.25, -0.75, -5.0, -6.0]
    row = torch.tensor([values + [0.0] * 16])
    halves = [0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0, 6.0, -0.0, -1.0, -4.0, -6.0]
    assert quantized(row, "mxfp4")[0, :16].tolist() == halves
    assert torch.equal(quantized(row * 2**-20, "mxfp4"), quantized(row, "mxfp4") * 2**-20)
    torch.manual_seed(0)
    random = quantized(torch.randn(8, 64), "mxfp4")
    assert torch.equal(quantized(random, "mxfp4"), random)
    assert quantized(torch.zeros(1, 32), "mxfp4").tolist() == [[0.0] * 32]
    with pytest.raises(ValueError, match="48 inputs are not whole groups of 32"):
        quantized(torch.zeros(2, 48), "mxfp4")


# ---------------------------------------------------------------- AWQ and GPTQ


def test_awq_by_hand():
    # Outputs 0…7 lie at half bytes 0, 4, 1, 5, 2, 6, 3, 7.
    words = torch.tensor([[pack([0, 2, 4, 6, 1, 3, 5, 7])], [pack([15] * 8)]], dtype=torch.int32)
    zeros = torch.tensor([[pack([8, 8, 8, 8, 7, 7, 7, 7])]], dtype=torch.int32)
    scales = torch.full((1, 8), 0.5).half()
    weight = decoded(int4.stored_awq(words, zeros, scales))
    zero = [8, 7, 8, 7, 8, 7, 8, 7]
    assert weight.tolist() == [[(output - zero[output]) / 2, (15 - zero[output]) / 2] for output in range(8)]


@pytest.mark.parametrize(("offset", "bits"), [(1, 4), (0, 4), (1, 8)])
def test_gptq_by_hand(offset: int, bits: int):
    per_word = 32 // bits
    rows = [[(3 * row + output) % (1 << bits) for output in range(per_word)] for row in range(per_word)]
    words = torch.tensor([[pack([row[output] for row in rows], bits) for output in range(per_word)]], dtype=torch.int32)
    zeros = torch.tensor([[pack([7] * per_word, bits)], [pack([2] * per_word, bits)]], dtype=torch.int32)
    scales = torch.stack([torch.full((per_word,), 0.5), torch.full((per_word,), 2.0)])
    group = torch.tensor([row % 2 for row in range(per_word)])
    weight = decoded(int4.stored_gptq(words, zeros, scales, group, bits=bits, zero_offset=offset))
    for output in range(per_word):
        for row in range(per_word):
            zero, scale = ((7, 0.5), (2, 2.0))[row % 2]
            assert weight[output, row] == (rows[row][output] - zero - offset) * scale


def test_the_last_group_of_gptq_may_be_smaller(tmp_path: Path):
    """Without g_idx it is the configuration that says how large groups are."""
    words = torch.tensor([[pack([9] * 8)] * 8] * 3, dtype=torch.int32)  # 24 inputs: a group of 16, one of 8
    zeros = torch.tensor([[pack([7] * 8)], [pack([4] * 8)]], dtype=torch.int32)
    scales = torch.stack([torch.full((8,), 0.5), torch.full((8,), 2.0)])
    save_file({"layer.qweight": words, "layer.qzeros": zeros, "layer.scales": scales}, tmp_path / "model.safetensors")
    config = {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False}
    weight = torch.empty(8, 24)
    with Checkpoint(tmp_path, Fields(tmp_path, config)) as checkpoint:
        checkpoint.load("layer.weight", weight)
    assert weight.tolist() == [[0.5] * 16 + [8.0] * 8] * 8


def test_three_bits_are_an_error():
    with pytest.raises(ValueError, match="3 bits are not supported"):
        int4.stored_gptq(torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1, 1), None, bits=3, zero_offset=1)


# ---------------------------------------------------------------- compressed-tensors


MX = {"strategy": "group", "group_size": 32, "scale_dtype": torch.uint8}
COMPRESSED = {
    "fp8 tensor": ((200, 320), "float-quantized", {"strategy": "tensor"}),
    "fp8 channel": ((200, 320), "float-quantized", {"strategy": "channel"}),
    "fp8 block": ((200, 320), "float-quantized", {"strategy": "block", "block_structure": [128, 128]}),
    "int4 group": ((44, 256), "pack-quantized", {"strategy": "group", "group_size": 32}),
    "int4 group asymmetric": ((44, 256), "pack-quantized", {"strategy": "group", "group_size": 64, "symmetric": False}),
    "int4 channel": ((44, 100), "pack-quantized", {"strategy": "channel"}),
    "int4 channel asymmetric": ((44, 100), "pack-quantized", {"strategy": "channel", "symmetric": False}),
    "mxfp4": ((44, 96), "mxfp4-pack-quantized", MX),
    "fp8 mx": ((44, 96), "mxfp8-quantized", MX),
    "int8 group": ((44, 256), "pack-quantized", {"num_bits": 8, "strategy": "group", "group_size": 128}),
}


@pytest.mark.slow  # importing the library alone takes seconds
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", COMPRESSED)
def test_as_compressed_tensors_decodes_it(case: str, dtype: torch.dtype, tmp_path: Path):
    shape, fmt, arguments = COMPRESSED[case]
    packed, config, theirs = compressed(shape, dtype, fmt, **arguments)
    save_file({f"layer.{part}": tensor.contiguous() for part, tensor in packed.items()}, tmp_path / "model.safetensors")
    with Checkpoint(tmp_path, Fields(tmp_path, config)) as checkpoint:
        ours = torch.empty(shape, dtype=dtype)
        checkpoint.load("layer.weight", ours)
    assert torch.equal(ours, theirs)


def test_packed_integers_in_an_order_of_their_own():
    """Activation ordering: neighbouring inputs belong to different groups."""
    torch.manual_seed(0)
    values, scales = torch.randint(0, 16, (3, 16)), torch.rand(3, 2)
    words = torch.tensor([[pack(row[at : at + 8]) for at in (0, 8)] for row in values.tolist()], dtype=torch.int32)
    group = torch.arange(16) % 2
    expected = (values - 8) * scales[:, group]
    assert torch.equal(decoded(int4.stored_packed(words, scales, None, (3, 16), bits=4, group=group)), expected)


@pytest.mark.parametrize(
    ("part", "tensor", "message"),
    [
        ("scale", torch.ones(3, 8), r"scales of shape \[3, 8\] do not fit a weight of 44 x 256"),
        ("zero_point", torch.ones(2, 8, dtype=torch.int32), r"zero points of shape \[2, 8\] do not fit"),
        ("shape", torch.tensor([44, 300]), r"32 words for 300 inputs are not of \[4\] bits"),
        ("g_idx", torch.full((256,), 9), "weight_g_idx does not give one of 8 groups"),
    ],
)
def test_packed_integers_that_contradict_each_other_are_named(
    part: str, tensor: torch.Tensor, message: str, tmp_path: Path
):
    packed, config, _ = compressed((44, 256), torch.float32, "pack-quantized", strategy="group", group_size=32)
    packed[f"weight_{part}"] = tensor
    save_file({f"layer.{name}": value for name, value in packed.items()}, tmp_path / "model.safetensors")
    with (
        Checkpoint(tmp_path, Fields(tmp_path, config)) as checkpoint,
        pytest.raises(ModelError, match=rf"layer\.weight.*{message}"),
    ):
        checkpoint.load("layer.weight", torch.empty(44, 256))


@pytest.mark.parametrize("case", [*COMPRESSED, "fp8 e5m2", "mxfp4 of ours", "gptq 2 bits"])
def test_a_piece_of_a_packed_weight_is_that_piece_of_it_all(case: str, tmp_path: Path):
    torch.manual_seed(0)
    weight: PackedWeight | None
    if case in COMPRESSED:
        shape, fmt, arguments = COMPRESSED[case]
        tensors, config, _ = compressed(shape, torch.float32, fmt, **arguments)
        save_file({f"l.{part}": each.contiguous() for part, each in tensors.items()}, tmp_path / "model.safetensors")
        with Checkpoint(tmp_path, Fields(tmp_path, config)) as checkpoint:
            weight = checkpoint.packed("l.weight", shape)
            assert checkpoint.packed("l.weight_scale", shape) is None
    elif case == "fp8 e5m2":
        weight = fp8.stored(torch.randn(60, 96).to(torch.float8_e5m2), torch.rand(60, 3))
    elif case == "mxfp4 of ours":
        weight = fp4.encode_mxfp4(torch.randn(60, 96))
    else:
        words = torch.randint(-(2**31), 2**31, (6, 64), dtype=torch.int64).int()
        zeros = torch.randint(-(2**31), 2**31, (2, 4), dtype=torch.int64).int()
        weight = int4.stored_gptq(words, zeros, torch.rand(2, 64), None, bits=2, zero_offset=0)
    assert weight is not None
    outputs, inputs = weight.shape
    whole = decoded(weight.to(torch.device("cpu")))
    assert whole.shape == (outputs, inputs)
    assert whole.is_contiguous()
    assert whole.unique().numel() > 3
    for start in range(0, outputs, weight.step):
        for stop in {min(start + weight.step, outputs), outputs}:
            assert torch.equal(weight.rows(start, stop), whole[start:stop])
    bits = {"fp8": 8, "int8": 8, "int4": 4, "mxfp4": 4, "gptq": 2}[case.split(maxsplit=1)[0]]
    assert weight.nbytes <= outputs * inputs * (bits / 8 + 0.35)
