"""Quantized weights: read as their formats say (by hand, or as the libraries that write them do), and made on load."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.device import should_keep_packed
from engine.errors import ModelError
from engine.layers import linear
from engine.layers.linear import PackedLinear, Tiling
from engine.model_config.fields import Fields
from engine.models.registry import load_model, read_config
from engine.options import Quantize
from engine.quantization import fp8, int4, mxfp4
from engine.quantization.on_load import quantized
from engine.quantization.packed import PackedWeight, decoded
from engine.startup.assembly import assemble
from engine.startup.options import ReplicaOptions
from engine.weights.checkpoint import Checkpoint
from tests.engine.conftest import generate, make_bench, write_model
from tests.engine.families import by_transformers, write_family
from tests.fast import only_fast

PROMPT = [(7 * i * i + 3 * i) % 131 for i in range(150)]


def pack(values: list[int], bits: int = 4) -> int:
    """Values of so many bits in one signed 32-bit word, the first in the lowest bits."""
    word = sum(value << (bits * index) for index, value in enumerate(values))
    return word - (1 << 32) if word >= 1 << 31 else word


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
    assert torch.equal(mxfp4.decode(blocks, scales), theirs.transpose(1, 2))


def test_mxfp4_by_hand():
    blocks = torch.zeros(1, 1, 16, dtype=torch.uint8)
    blocks[0, 0, :3] = torch.tensor([0x21, 0xF7, 0x98])
    values = mxfp4.decode(blocks, torch.tensor([[128]], dtype=torch.uint8))
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


def compressed(
    shape: tuple[int, int], dtype: torch.dtype, fmt: str, **arguments: object
) -> tuple[dict[str, torch.Tensor], dict[str, object], torch.Tensor]:
    """A weight as compressed-tensors stores it, the `quantization_config` it writes, and what it makes of it again."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    arguments = {"num_bits": 8 if fmt in {"float-quantized", "mxfp8-quantized"} else 4, **arguments}
    kind = "int" if fmt == "pack-quantized" else "float"
    args = QuantizationArgs(type=kind, **arguments)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    torch.manual_seed(3)
    weight = (torch.randn(shape) + 0.3).to(dtype)
    outputs, inputs = shape
    rows, columns = {
        "tensor": shape,
        "channel": (1, inputs),
        "group": (1, args.group_size),
        "block": args.block_structure,
    }[args.strategy]
    extent = (-(-outputs // rows) * rows, -(-inputs // columns) * columns)
    padded = torch.nn.functional.pad(weight, (0, extent[1] - inputs, 0, extent[0] - outputs))
    blocks = padded.view(extent[0] // rows, rows, extent[1] // columns, columns)
    scale, zero = calculate_qparams(blocks.amin((1, 3)), blocks.amax((1, 3)), args)
    if args.strategy == "tensor":
        scale, zero = scale.flatten(), zero.flatten()
    state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
    compressor = BaseCompressor.get_value_from_registry(fmt)
    packed = compressor.compress(state, scheme)
    config = {"quant_method": "compressed-tensors", "format": fmt, "config_groups": {"group_0": scheme.model_dump()}}
    return packed, json.loads(json.dumps(config, default=str)), compressor.decompress(packed, scheme)["weight"]


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


# ---------------------------------------------------------------- whole checkpoints


def stored(folder: Path, quantization: dict[str, object], fmt: str) -> tuple[Path, Path]:
    """Two models: one whose projections are stored in the format, one that holds the same values plainly."""
    plain = write_model(folder / "plain", hidden_size=64, intermediate_size=128, num_attention_heads=8)
    tensors = load_file(plain / "model.safetensors")
    packed: dict[str, torch.Tensor] = {}
    torch.manual_seed(1)
    for name, tensor in list(tensors.items()):
        if "_proj" not in name:
            packed[name] = tensor
            continue
        layer = name.removesuffix(".weight")
        outputs, inputs = tensor.shape
        match fmt:
            case "tensor" | "channel" | "block":
                shape = {"tensor": (1,), "channel": (outputs, 1), "block": (-(-outputs // 48), -(-inputs // 48))}[fmt]
                scales = torch.rand(shape) / 10 + 0.01
                weight = (torch.randn_like(tensor) * 4).to(torch.float8_e4m3fn)
                suffix = "weight_scale_inv" if fmt == "block" else "weight_scale"
                packed |= {name: weight, f"{layer}.{suffix}": scales}
                tensors[name] = fp8.decode(weight, scales, (48, 48))
            case "awq" | "gptq":
                across, along = (outputs // 8, inputs) if fmt == "awq" else (outputs, inputs // 8)
                words = torch.randint(-(2**31), 2**31, (along, across), dtype=torch.int64).int()
                zeros = torch.randint(-(2**31), 2**31, (2, outputs // 8), dtype=torch.int64).int()
                scales = (torch.rand(2, outputs) / 20).half()
                packed |= {f"{layer}.qweight": words, f"{layer}.qzeros": zeros, f"{layer}.scales": scales}
                if fmt == "awq":
                    tensors[name] = decoded(int4.stored_awq(words, zeros, scales))
                else:
                    group = torch.arange(inputs).flip(0) // (inputs // 2)
                    packed[f"{layer}.g_idx"] = group.int()
                    tensors[name] = decoded(int4.stored_gptq(words, zeros, scales, group, bits=4, zero_offset=1))
    save_file(tensors, plain / "model.safetensors")
    config = json.loads((plain / "config.json").read_text())
    other = folder / fmt
    other.mkdir()
    (other / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}))
    save_file(packed, other / "model.safetensors")
    return other, plain


FORMATS = {
    "tensor": {"quant_method": "compressed-tensors", "config_groups": {}},
    "channel": {"quant_method": "compressed-tensors", "config_groups": {}},
    "block": {"quant_method": "fp8", "weight_block_size": [48, 48]},
    "awq": {"quant_method": "awq", "bits": 4, "version": "gemm"},
    "gptq": {"quant_method": "gptq", "bits": 4, "desc_act": True},
}


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_quantized_checkpoint_is_the_model_that_it_holds(fmt: str, tmp_path: Path):
    folder, plain = stored(tmp_path, FORMATS[fmt], fmt)
    run = make_bench(folder).one(generate("a", PROMPT, 8))
    logits = by_transformers(plain, PROMPT + run.tokens)[len(PROMPT) - 1 : -1]
    assert (torch.stack(run.logits) - logits).abs().max() < 1e-4 * max(1.0, float(logits.abs().max()))
    assert run.tokens == logits.argmax(-1).tolist()


def assert_same_when_kept_packed(folder: Path, quantize: Quantize = "none") -> None:
    """Chunks, decodes alone and together, fp32 and bf16: the logits of weights that were decoded on loading."""
    for dtype in (torch.float32, torch.bfloat16):
        runs = []
        for weights in ("decoded", "packed"):
            bench = make_bench(folder, dtype=dtype, weights=weights, quantize=quantize, budget=100, running=8)
            kept = any(isinstance(one, PackedLinear) for one in bench.engine.runner.tiling.products.values())
            assert kept == (weights == "packed")
            beside = [bench.add(generate(str(length), PROMPT[:length], 6)) for length in (3, 64, 90)]
            bench.finish()
            runs.append([*beside, bench.one(generate("a", PROMPT, 8, read=False))])
        for ours, theirs in zip(*runs, strict=True):
            assert ours.tokens == theirs.tokens
            assert torch.equal(torch.stack(ours.logits), torch.stack(theirs.logits))


@pytest.mark.slow
@pytest.mark.parametrize("fmt", only_fast("gptq", of=FORMATS))
def test_kept_packed_it_says_the_same(fmt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder, _ = stored(tmp_path, FORMATS[fmt], fmt)
    # Small tiles, so that these small weights have several: of 48 outputs where scales are for as many.
    monkeypatch.setattr(linear, "_TILE_OUTPUTS", 16)
    monkeypatch.setattr(linear, "_TILE_ELEMENTS", 16)
    assert_same_when_kept_packed(folder)


@pytest.mark.slow
@pytest.mark.parametrize("quantize", ["fp8", "mxfp4"])
def test_kept_packed_when_quantized_on_load(quantize: Quantize, tmp_path: Path):
    folder = write_model(tmp_path / "model", hidden_size=64, intermediate_size=128, num_attention_heads=8)
    assert_same_when_kept_packed(folder, quantize)


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
        weight = mxfp4.Mxfp4Weight(*mxfp4.encode(torch.randn(60, 96)))
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


def test_what_fits_well_into_memory_is_decoded():
    ram = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cpu = torch.device("cpu")
    assert not should_keep_packed("auto", lambda: ram // 3, cpu)
    assert should_keep_packed("auto", lambda: ram, cpu)
    assert should_keep_packed("packed", lambda: 1, cpu)
    assert not should_keep_packed("decoded", lambda: ram * 2, cpu)


@pytest.mark.parametrize("fmt", FORMATS)
def test_what_decoding_would_take_is_known_beforehand(fmt: str, tmp_path: Path):
    folder, plain = stored(tmp_path, FORMATS[fmt], fmt)
    with Checkpoint(folder, Fields(folder, FORMATS[fmt])) as small, Checkpoint(plain) as large:
        assert 1 <= small.decoded_bytes(4) / large.decoded_bytes(4) < 1.1
        assert large.decoded_bytes(4) == sum(t.nbytes for t in load_file(plain / "model.safetensors").values())


def load(folder: Path, quantize: str = "none") -> None:
    load_model(folder, read_config(folder), torch.zeros(()), Tiling(), 64, quantize=quantize)


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
        pytest.raises(ModelError, match=r"layer\.weight: .* only MXFP4 is supported, and its scales are torch\.float8"),
    ):
        checkpoint.load("layer.weight", torch.empty(8, 64))
    parts["scale"] = torch.zeros(8, 4, dtype=torch.uint8)
    save_file({f"layer.weight_{part}": tensor for part, tensor in parts.items()}, tmp_path / "model.safetensors")
    with (
        Checkpoint(tmp_path) as checkpoint,
        pytest.raises(ModelError, match=r"\[8, 4\] do not fit values of \[8, 32\]"),
    ):
        checkpoint.load("layer.weight", torch.empty(8, 64))


def test_quantizing_on_load(tmp_path: Path):
    """The same as loading the weights that were quantized beforehand."""
    folder = write_model(tmp_path / "model", hidden_size=64, intermediate_size=128, num_attention_heads=8)
    for quantize in ("fp8", "mxfp4"):
        tensors = load_file(folder / "model.safetensors")
        before = {name: quantized(tensor, quantize) if "_proj" in name else tensor for name, tensor in tensors.items()}
        other = tmp_path / quantize
        other.mkdir()
        (other / "config.json").write_text((folder / "config.json").read_text())
        save_file(before, other / "model.safetensors")
        expected = make_bench(other).one(generate("a", PROMPT, 8))
        run = make_bench(folder, quantize=quantize).one(generate("a", PROMPT, 8))
        assert run.tokens == expected.tokens
        assert torch.equal(torch.stack(run.logits), torch.stack(expected.logits))
    odd = write_model(tmp_path / "odd")
    with pytest.raises(ModelError, match=r"layers\.0\.self_attn\.q_proj cannot become mxfp4: 48 inputs"):
        load(odd, "mxfp4")


@pytest.mark.slow
def test_gpt_oss_in_mxfp4(tmp_path: Path):
    """Its experts as `_blocks` and `_scales`: the same as the plain model that holds their values."""

    plain = write_family("gpt-oss", tmp_path / "plain", hidden_size=64)
    files = sorted(plain.glob("*.safetensors"))
    tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
    packed = dict(tensors)
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts = packed.pop(name).transpose(1, 2).contiguous()
        parts = [mxfp4.encode(expert) for expert in experts]
        packed[f"{name}_blocks"], packed[f"{name}_scales"] = (torch.stack(part) for part in zip(*parts, strict=True))
        values = mxfp4.decode(packed[f"{name}_blocks"], packed[f"{name}_scales"])
        tensors[name] = values.transpose(1, 2).contiguous()
    for file in [*files, plain / "model.safetensors.index.json"]:
        file.unlink()
    save_file(tensors, plain / "model.safetensors", metadata={"format": "pt"})
    other = tmp_path / "packed"
    other.mkdir()
    config = json.loads((plain / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "mxfp4"}}))
    save_file(packed, other / "model.safetensors")
    run = make_bench(other).one(generate("a", PROMPT, 16))
    logits = by_transformers(plain, PROMPT + run.tokens)[len(PROMPT) - 1 : -1]
    assert (torch.stack(run.logits) - logits).abs().max() < 1e-4
    assert run.tokens == logits.argmax(-1).tolist()
    assert_same_when_kept_packed(other)
    for part in ("blocks", "scales"):
        name = f"model.layers.0.mlp.experts.down_proj_{part}"
        packed[name] = packed[name][:, :-1].contiguous()
    save_file(packed, other / "model.safetensors")
    for weights in ("decoded", "packed"):
        with pytest.raises(ModelError, match=r"experts\.\w+.* shape"):
            make_bench(other, weights=weights)


@pytest.mark.slow
def test_a_quantized_replica_is_another_model(tmp_path: Path):
    """Its KV is not that of the folder's own weights, so its keys must differ."""
    folder = write_model(tmp_path / "model", hidden_size=64, intermediate_size=128, num_attention_heads=8)
    made = {
        quantize: assemble(
            ReplicaOptions(folder, "unix:x", tmp_path, "r", b"", device="cpu", kv_memory=1 << 22, quantize=quantize)
        )
        for quantize in ("none", "fp8", "mxfp4")
    }
    assert len({assembled.model.digest for assembled in made.values()}) == 3


@pytest.mark.slow
def test_longrope_stretched_by_the_context_that_is_served_is_another_model(tmp_path: Path):
    folder = write_family("phi3 longrope", tmp_path / "model")

    def digest(context: int) -> str:
        options = ReplicaOptions(folder, "unix:x", tmp_path, "r", b"", device="cpu", kv_memory=1 << 22, context=context)
        return assemble(options).model.digest

    assert digest(64) != digest(65)


# ---------------------------------------------------------------- what would change the answer


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
        ("channel", {"quant_method": "modelopt", "quant_algo": "NVFP4"}, "quantization_config.quant_algo 'NVFP4'"),
        ("tensor", {"quant_method": "bitsandbytes"}, "quant_method 'bitsandbytes' is not supported"),
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
    mxfp4.stored(torch.zeros(8, 32, dtype=torch.uint8), scales)
    scales[7, 1] = 255
    with pytest.raises(ValueError, match="scales are not all finite"):
        mxfp4.stored(torch.zeros(8, 32, dtype=torch.uint8), scales)


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
