"""Checks a configuration's `quantization_config`: refuses what would change the answer and is not implemented.

The format of each weight follows from its tensors (`stored`), so lists of layers that are not quantized are not read.
Settings for activations and KV are ignored: these are computed in the model's own type, which is closer to the original
model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.errors import ModelError
from engine.model_config.fields import Fields

_FIXED: dict[str, dict[str, tuple[Any, ...]]] = {
    "": {},
    "awq": {},
    "bitsandbytes": {"load_in_8bit": (None, False), "bnb_4bit_quant_storage": (None, "uint8")},
    "compressed-tensors": {
        "format": (
            None,
            "dense",
            "float-quantized",
            "int-quantized",
            "mixed-precision",
            "mxfp4-pack-quantized",
            "mxfp8-quantized",
            "naive-quantized",
            "nvfp4-pack-quantized",
            "pack-quantized",
        ),
        "moe_sparsity_config": (None, {}),
    },
    "fbgemm_fp8": {},
    "fp8": {},
    "gptq": {"is_marlin_format": (None, False), "is_bitblas_format": (None, False)},
    "modelopt": {"quant_algo": (None, "FP8", "NVFP4")},
    "mxfp4": {},
}
"""supported `quant_method` -> field that would change the answer -> implemented values"""
_GPTQ_FORMATS = {"gptq": 1, "gptq_v2": 0}
"""format -> what it subtracted from zeros when it stored them"""


def check_quantization(quantization: Fields) -> None:
    """Raise ModelError that names a method, or a field of it, that is not supported."""
    method = quantization.text("quant_method", "")
    fixed = _FIXED.get(method)
    if fixed is None:
        supported = ", ".join(sorted(name for name in _FIXED if name))
        raise ModelError(f"{quantization.path}: quant_method {method!r} is not supported (supported: {supported})")
    for name, values in fixed.items():
        if quantization.fields.get(name) not in values:
            _refuse(quantization, name)
    if method == "compressed-tensors":
        transform = quantization.inner("transform_config")
        if any(transform.fields.values()):  # rotations of weights and activations
            _refuse(quantization, "transform_config")
        if quantization.inner("sparsity_config").text("format", "dense") != "dense":
            _refuse(quantization, "sparsity_config")
    if method == "gptq":
        gptq_zero_offset(quantization)
    if "weight_block_size" in quantization:
        sizes = quantization.integers("weight_block_size")
        if len(sizes) != 2 or min(sizes) < 1:
            raise ModelError(f"{quantization.path}: field weight_block_size must be two sizes, is {list(sizes)}")


def gptq_zero_offset(quantization: Fields) -> int:
    """What a GPTQ file subtracted from its zeros, by its format. Raises ModelError for an unsupported format."""
    name = "checkpoint_format" if "checkpoint_format" in quantization else "format"
    gptq_format = quantization.text(name, "gptq").lower()
    if gptq_format not in _GPTQ_FORMATS:
        _refuse(quantization, name)
    return _GPTQ_FORMATS[gptq_format]


def check_groups(quantization: Fields, inputs: int, groups: int) -> None:
    """Raise ValueError if `group_size` does not make as many groups as there are scales."""
    size = quantization.fields.get("group_size")
    if type(size) is not int:
        return
    wanted = 1 if size == -1 else -(-inputs // size) if size > 0 else 0
    if groups != wanted:
        raise ValueError(f"scales for {groups} groups do not fit {inputs} inputs with group_size {size}")


def check_packed_groups(configs: Sequence[Fields], inputs: int, groups: int, *, in_order: bool) -> None:
    """Raise ValueError unless one of these `weights` of compressed-tensors makes as many groups as there are scales, of
    whole groups where inputs are in order. Raises ModelError for a group_size that is no size."""
    if configs and not any(_makes_groups(weights, inputs, groups, in_order) for weights in configs):
        said = ", ".join(f"group_size {weights.fields.get('group_size')!r}" for weights in configs)
        raise ValueError(f"scales for {groups} groups do not fit {inputs} inputs with {said}")


def _makes_groups(weights: Fields, inputs: int, groups: int, in_order: bool) -> bool:
    strategy = weights.text("strategy", "")
    if weights.fields.get("group_size") in (None, -1):
        return groups == 1 if strategy in {"channel", "tensor"} or "group_size" in weights else strategy != "group"
    size = weights.integer("group_size")
    return groups == -(-inputs // size) and (not in_order or groups == 1 or inputs % size == 0)


def _refuse(quantization: Fields, name: str) -> None:
    raise ModelError(
        f"{quantization.path}: field quantization_config.{name} {quantization.fields.get(name)!r} is not supported"
        f" for quant_method {quantization.text('quant_method', '')}: it changes what the model answers"
    )
