"""Random weights in files' formats, and what they stand for by the formats' published definitions, in float64.

Nothing here uses the code under test: codes are packed and read number by number.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import torch

Written = tuple[dict[str, torch.Tensor], torch.Tensor]
"""Tensors by what follows a layer's name, and the weight [outputs, inputs] in float64."""

NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]  # fmt: skip
"""The table of Dettmers et al. 2023, appendix E."""


def e2m1(code: int) -> float:
    """Sign, two bits of exponent with bias 1, one of mantissa (OCP Microscaling Formats 1.0, table 5)."""
    sign, exponent, mantissa = code >> 3, code >> 1 & 3, code & 1
    magnitude = mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1)
    return -magnitude if sign else magnitude


def _codes(shape: tuple[int, int]) -> torch.Tensor:
    return torch.randint(0, 16, shape)


def _values(codes: torch.Tensor, table: list[float]) -> torch.Tensor:
    return torch.tensor(table, dtype=torch.float64)[codes]


def _bytes(codes: torch.Tensor, *, low_first: bool = True) -> torch.Tensor:
    even, odd = codes[:, ::2], codes[:, 1::2]
    low, high = (even, odd) if low_first else (odd, even)
    return (low + 16 * high).to(torch.uint8)


def _words(codes: torch.Tensor) -> torch.Tensor:
    """[n, inputs] → int32 [n, inputs / 8], the first code in the lowest bits."""
    grouped = codes.view(len(codes), -1, 8).long()
    whole = sum(grouped[..., place] << (4 * place) for place in range(8))
    assert isinstance(whole, torch.Tensor)
    return torch.where(whole >= 1 << 31, whole - (1 << 32), whole).int()


def _each(scales: torch.Tensor, size: int) -> torch.Tensor:
    return scales.double().repeat_interleave(size, 1)


_E2M1 = [e2m1(code) for code in range(16)]


def nvfp4(outputs: int, inputs: int, *, modelopt: bool) -> Written:
    """NVIDIA's: e2m1 · e4m3 of 16 inputs · fp32. modelopt stores that last one, compressed-tensors its reciprocal."""
    codes = _codes((outputs, inputs))
    scales = (torch.rand(outputs, inputs // 16) * 300 + 1).to(torch.float8_e4m3fn)
    outer = (torch.rand(()) + 0.5) * 2e-4
    # What activations would be divided by is stored too, and is not used.
    if modelopt:
        parts = {"weight": _bytes(codes), "weight_scale": scales, "weight_scale_2": outer, "input_scale": outer * 9}
    else:
        outer = 1 / (1 / outer)
        parts = {"weight_packed": _bytes(codes), "weight_scale": scales, "weight_global_scale": (1 / outer).view(1)}
        parts["input_global_scale"] = torch.ones(1) * 7
    return parts, _values(codes, _E2M1) * _each(scales.float(), 16) * outer.double()


def mxfp4(outputs: int, inputs: int) -> Written:
    """OCP's: e2m1 · 2^(byte − 127) of 32 inputs."""
    codes, scales = _codes((outputs, inputs)), torch.randint(118, 124, (outputs, inputs // 32))
    parts = {"weight_packed": _bytes(codes), "weight_scale": scales.to(torch.uint8)}
    return parts, _values(codes, _E2M1) * _each(2.0 ** (scales.double() - 127), 32)


def table_of_16(outputs: int, inputs: int, kind: str, *, nested: bool) -> Written:
    """bitsandbytes': table[code] · absmax of 64 elements; a byte's high half is the first."""
    codes, groups = _codes((outputs, inputs)), outputs * inputs // 64
    table = NF4 if kind == "nf4" else [value / 6 for value in _E2M1]
    state = {"quant_type": kind, "blocksize": 64, "dtype": "bfloat16", "shape": [outputs, inputs]}
    parts = {"weight": _bytes(codes, low_first=False).view(-1, 1), "weight.quant_map": torch.tensor(table)}
    scales = torch.rand(groups) / 4 + 0.05
    if nested:
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.125}
        numbers, outer = torch.linspace(-1, 1, 256), torch.rand(-(-groups // 256)) / 10 + 0.01
        indices = torch.randint(0, 256, (groups,))
        parts |= {"weight.nested_quant_map": numbers, "weight.nested_absmax": outer}
        parts["weight.absmax"] = indices.to(torch.uint8)
        exact = torch.tensor([float(numbers[index]) * float(outer[i // 256]) for i, index in enumerate(indices)])
        scales = exact.double() + 0.125
    else:
        parts["weight.absmax"] = scales
    text = json.dumps(state).encode()
    parts[f"weight.quant_state.bitsandbytes__{kind}"] = torch.tensor(list(text), dtype=torch.uint8)
    exact_table = torch.tensor(table).double().tolist()
    return parts, _values(codes, exact_table) * _each(scales.view(outputs, -1), 64)


def integers(outputs: int, inputs: int, group: int, *, symmetric: bool) -> Written:
    """compressed-tensors' `pack-quantized`: (code − zero) · scale of a group of inputs; symmetric: zero is 8."""
    codes = _codes((outputs, inputs))
    scales = (torch.rand(outputs, inputs // group) / 20 + 0.002).bfloat16()
    zeros = torch.full((outputs, inputs // group), 8) if symmetric else _codes((outputs, inputs // group))
    parts = {
        "weight_packed": _words(codes),
        "weight_scale": scales,
        "weight_shape": torch.tensor([outputs, inputs]),
    }
    if not symmetric:
        parts["weight_zero_point"] = _words(zeros.t().contiguous()).t().contiguous()
    return parts, (codes - zeros.repeat_interleave(group, 1)).double() * _each(scales, group)


def gptq(outputs: int, inputs: int, group: int, *, act_order: bool) -> Written:
    """GPTQ's first version, which stores zeros minus one: (code − zero) · scale of an input's group."""
    codes, zeros = _codes((outputs, inputs)), _codes((outputs, inputs // group))
    scales = (torch.rand(outputs, inputs // group) / 20 + 0.002).half()
    order = torch.randperm(inputs) if act_order else torch.arange(inputs)
    groups = order // group
    parts = {
        "qweight": _words(codes).t().contiguous(),
        "qzeros": _words(zeros.t().contiguous()),
        "scales": scales.t().contiguous(),
        "g_idx": groups.int(),
    }
    return parts, (codes - zeros[:, groups] - 1).double() * scales.double()[:, groups]


def awq(outputs: int, inputs: int, group: int) -> Written:
    """AWQ's: words of 8 outputs, which lie in the order 0 2 4 6 1 3 5 7."""
    codes, zeros = _codes((outputs, inputs)), _codes((outputs, inputs // group))
    scales = (torch.rand(outputs, inputs // group) / 20 + 0.002).half()

    def shuffled(values: torch.Tensor) -> torch.Tensor:
        return _words(values.t().reshape(-1, 8)[:, [0, 2, 4, 6, 1, 3, 5, 7]]).view(values.shape[1], -1)

    parts = {"qweight": shuffled(codes), "qzeros": shuffled(zeros), "scales": scales.t().contiguous()}
    return parts, (codes - zeros.repeat_interleave(group, 1)).double() * _each(scales, group)


def _compressed(fmt: str, **weights: object) -> dict[str, object]:
    return {
        "quant_method": "compressed-tensors",
        "format": fmt,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, **weights}}},
    }


PUBLISHED: dict[str, tuple[dict[str, object], Callable[[int, int], Written]]] = {
    "nvfp4 modelopt": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head"]},
        lambda outputs, inputs: nvfp4(outputs, inputs, modelopt=True),
    ),
    "nvfp4 compressed": (
        _compressed("nvfp4-pack-quantized", type="float", group_size=16),
        lambda outputs, inputs: nvfp4(outputs, inputs, modelopt=False),
    ),
    "mxfp4 compressed": (_compressed("mxfp4-pack-quantized", type="float", group_size=32), mxfp4),
    "nf4": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        lambda outputs, inputs: table_of_16(outputs, inputs, "nf4", nested=True),
    ),
    "fp4 table": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
        lambda outputs, inputs: table_of_16(outputs, inputs, "fp4", nested=False),
    ),
    **{
        f"int4 g{group} {'symmetric' if symmetric else 'with zeros'}": (
            _compressed("pack-quantized", group_size=group, symmetric=symmetric),
            lambda outputs, inputs, group=group, symmetric=symmetric: integers(
                outputs, inputs, group, symmetric=symmetric
            ),
        )
        for group in (32, 64, 128)
        for symmetric in (True, False)
    },
    "gptq": (
        {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False},
        lambda outputs, inputs: gptq(outputs, inputs, 64, act_order=False),
    ),
    "gptq act-order": (
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True},
        lambda outputs, inputs: gptq(outputs, inputs, 32, act_order=True),
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"},
        lambda outputs, inputs: awq(outputs, inputs, 128),
    ),
}  # type: ignore[assignment]
"""Name → `quantization_config`, and what writes a weight of so many outputs and inputs."""
