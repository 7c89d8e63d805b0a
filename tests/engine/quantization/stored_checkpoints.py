"""Weights of few bits for tests: in words, in checkpoints, and in models beside others that hold the same plainly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from engine.layers.linear import Tiling
from engine.models.registry import load_model, read_config
from engine.quantization import fp8, int4
from engine.quantization.packed import decoded
from tests.engine.conftest import write_model


def pack(values: list[int], bits: int = 4) -> int:
    """Values of so many bits in one signed 32-bit word, the first in the lowest bits."""
    word = sum(value << (bits * index) for index, value in enumerate(values))
    return word - (1 << 32) if word >= 1 << 31 else word


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


SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 8}


def stored(
    folder: Path, quantization: dict[str, object], fmt: str, sizes: Mapping[str, object] = SIZES
) -> tuple[Path, Path]:
    """Two models: one whose projections are stored in the format, one that holds the same values plainly."""
    plain = write_model(folder / "plain", **sizes)
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


def load(folder: Path, quantize: str = "none") -> None:
    load_model(folder, read_config(folder), torch.zeros(()), Tiling(), 64, quantize=quantize)
