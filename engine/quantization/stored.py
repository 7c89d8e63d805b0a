"""Reads a weight in whichever format it is stored: plain, FP8, MXFP4, NVFP4, AWQ, GPTQ, compressed-tensors' integers,
bitsandbytes' tables of 16, GGUF's blocks.

The format follows from the tensors that exist; `quantization_config` is used for what they do not show (bits, block
size).
"""

from __future__ import annotations

from typing import Protocol

import torch

from engine.model_config.fields import Fields
from engine.quantization import fp4, fp8, int4, nf4
from engine.quantization.packed import PackedWeight
from engine.quantization.quantization_config import check_groups, check_packed_groups, gptq_zero_offset

_OUT_OF_ORDER = ("group", True)
_SCALES = ("weight_scale_inv", "weight_scale", "scale")


class Tensors(Protocol):
    """A checkpoint's tensors by name."""

    def __contains__(self, name: str) -> bool:
        """Whether there is such a tensor."""

    def read(self, name: str) -> torch.Tensor:
        """The tensor as stored. Raises ModelError if it is missing or cannot be read."""

    def file_packed(self, name: str) -> PackedWeight | None:
        """The weight where the file's own format keeps it in few bits. Raises as `read` does, and ValueError."""


def find_weight(tensors: Tensors, name: str, quantization: Fields) -> torch.Tensor | PackedWeight:
    """The weight `name` as stored, plain or packed.

    Raises ModelError if a tensor is missing, ValueError if one is invalid.
    """
    layer, _, last = name.rpartition(".")
    if name in tensors or last != "weight":
        return _plain(tensors, name, layer, quantization)
    if f"{layer}.weight_packed" in tensors:
        return _packed(tensors, layer, quantization)
    if f"{layer}.qweight" not in tensors:
        return tensors.read(name)
    words, zeros, scales = (tensors.read(f"{layer}.{part}") for part in ("qweight", "qzeros", "scales"))
    method = quantization.text("quant_method", "")
    if method == "awq":
        bits = quantization.integer("bits", 4)
        if bits != 4 or quantization.text("version", quantization.text("format", "gemm")).lower() != "gemm":
            raise ValueError("AWQ is supported with 4 bits and version gemm only")
        weight = int4.stored_awq(words, zeros, scales)
        check_groups(quantization, weight.inputs, len(scales))
        return weight
    if method == "gptq":
        return _gptq(tensors, layer, quantization, (words, zeros, scales))
    raise ValueError(f"quant_method {method!r} is not supported for packed integers (awq and gptq are)")


def _gptq(
    tensors: Tensors, layer: str, quantization: Fields, parts: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> PackedWeight:
    words, _, scales = parts
    group = tensors.read(f"{layer}.g_idx") if f"{layer}.g_idx" in tensors else None
    bits, size = quantization.integer("bits", 4), quantization.fields.get("group_size")
    if group is None:
        if quantization.flag("desc_act"):
            raise ValueError("desc_act is true and g_idx, which says the group of each input, is missing")
        if type(size) is int and size > 0 and words.dim():
            size = quantization.integer("group_size")  # bounded
            # The last group may be smaller.
            group = torch.arange(len(words) * 32 // bits, device=words.device) // size
    weight = int4.stored_gptq(*parts, group, bits=bits, zero_offset=gptq_zero_offset(quantization))
    check_groups(quantization, weight.inputs, len(scales))
    return weight


def _packed(tensors: Tensors, layer: str, quantization: Fields) -> PackedWeight:
    words, scales = (tensors.read(f"{layer}.weight_{part}") for part in ("packed", "scale"))
    if words.dtype == torch.uint8:
        return _packed_floats(tensors, layer, words, scales)
    sizes = tensors.read(f"{layer}.weight_shape")
    if sizes.numel() != 2 or sizes.is_floating_point():
        raise ValueError(f"weight_shape has {sizes.numel()} elements of {sizes.dtype} instead of 2 whole numbers")
    if words.dim() != 2:
        raise ValueError(f"words of shape {list(words.shape)} are not those of a weight")
    outputs, inputs = sizes.flatten().tolist()
    # The number of words tells the bits, so there is no need to find the layer's config group.
    all_bits = {weights.integer("num_bits", 4) for weights in _weights(quantization)} or {4}
    fitting = [bits for bits in sorted(all_bits) if words.shape[-1] == -(-inputs * bits // 32)]
    if len(fitting) != 1:
        raise ValueError(f"{words.shape[-1]} words for {inputs} inputs are not of {sorted(all_bits)} bits (num_bits)")
    zeros, group = (
        tensors.read(f"{layer}.weight_{part}") if f"{layer}.weight_{part}" in tensors else None
        for part in ("zero_point", "g_idx")
    )
    configs = [weights for weights in _weights(quantization) if weights.integer("num_bits", 4) == fitting[0]]
    if group is None and any(weights.fields.get("actorder") in _OUT_OF_ORDER for weights in configs):
        raise ValueError("actorder is group and weight_g_idx, which says the group of each input, is missing")
    if zeros is None and configs and not any(weights.flag("symmetric", True) for weights in configs):
        raise ValueError("symmetric is false and weight_zero_point is missing")
    groups = 1 if scales.numel() == 1 else scales.shape[-1]
    check_packed_groups(configs, inputs, groups, in_order=group is None or bool((group == -1).all()))
    return int4.stored_packed(words, scales, zeros, (outputs, inputs), bits=fitting[0], group=group)


def _packed_floats(tensors: Tensors, layer: str, codes: torch.Tensor, scales: torch.Tensor) -> PackedWeight:
    """compressed-tensors' floats of 4 bits."""
    if f"{layer}.weight_zero_point" in tensors:
        raise ValueError("it is in floats of 4 bits with zero points, which only integers may have")
    if f"{layer}.weight_global_scale" not in tensors:
        return fp4.stored_mxfp4(codes, scales)
    # It divides. A number that is none then is refused as a scale.
    divisor = tensors.read(f"{layer}.weight_global_scale")
    return fp4.stored_nvfp4(codes, scales, 1.0 / divisor.float() if divisor.is_floating_point() else divisor)


def _half_bytes(tensors: Tensors, layer: str, codes: torch.Tensor) -> PackedWeight:
    """Two codes in a byte under the name of a plain weight: modelopt's NVFP4 and bitsandbytes' tables of 16."""
    for kind in nf4.KINDS:
        state_name = f"{layer}.weight.quant_state.bitsandbytes__{kind}"
        if state_name not in tensors:
            continue
        state = nf4.QuantState.read(kind, tensors.read(state_name))
        table, scales = (tensors.read(f"{layer}.weight.{part}") for part in ("quant_map", "absmax"))
        nested = None
        if f"{layer}.weight.nested_absmax" in tensors:
            nested = tensors.read(f"{layer}.weight.nested_quant_map"), tensors.read(f"{layer}.weight.nested_absmax")
        return nf4.stored(codes, table, scales, state, nested)
    if f"{layer}.pre_quant_scale" in tensors:
        raise ValueError("pre_quant_scale, by which its inputs would have to be multiplied, is not supported")
    if f"{layer}.weight_scale_2" not in tensors:
        raise ValueError("it is bytes, and has neither NVFP4's weight_scale_2 nor bitsandbytes' quant_state")
    return fp4.stored_nvfp4(codes, tensors.read(f"{layer}.weight_scale"), tensors.read(f"{layer}.weight_scale_2"))


def _plain(tensors: Tensors, name: str, layer: str, quantization: Fields) -> torch.Tensor | PackedWeight:
    packed = tensors.file_packed(name)
    if packed is not None:
        return packed
    weight = tensors.read(name)
    if weight.dtype == torch.uint8 and name == f"{layer}.weight":
        return _half_bytes(tensors, layer, weight)
    if weight.dtype not in {torch.float8_e4m3fn, torch.float8_e5m2, torch.int8}:
        return weight
    for scale in _SCALES:
        if f"{layer}.{scale}" in tensors:
            if f"{layer}.weight_zero_point" in tensors:
                raise ValueError(f"it is {weight.dtype} with zero points, which only packed integers may have")
            scales = tensors.read(f"{layer}.{scale}")
            # Powers of two (MXFP8) are stored as bytes.
            scales = scales.view(torch.float8_e8m0fnu) if scales.dtype == torch.uint8 else scales
            return fp8.stored(weight, scales, _block(quantization))
    raise ValueError(f"it is {weight.dtype} and has no scales ({', '.join(_SCALES)})")


def _weights(quantization: Fields) -> list[Fields]:
    """The `weights` of each of compressed-tensors' `config_groups`."""
    groups = quantization.inner("config_groups")
    return [groups.inner(name).inner("weights") for name in groups.fields]


def _block(quantization: Fields) -> tuple[int, int]:
    """Outputs and inputs of a block: `weight_block_size`, or compressed-tensors' `block_structure` of any group."""
    size = quantization.fields.get("weight_block_size")
    for weights in _weights(quantization):
        size = size or weights.fields.get("block_structure")
    if isinstance(size, list) and len(size) == 2 and all(isinstance(item, int) and item > 0 for item in size):
        return size[0], size[1]
    return 128, 128
