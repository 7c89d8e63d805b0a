"""What `quantization_config` says of all weights. What would change the answer and is not implemented is refused.

How each weight is stored shows in its tensors (`stored`); lists of layers that are left plain need not be read. What is
said about activations and KV is left aside: they are computed in the model's own type, which is nearer to the model
that was quantized.
"""

from __future__ import annotations

from typing import Any

from engine.errors import ModelError
from engine.model_config.fields import Fields

_FIXED: dict[str, dict[str, tuple[Any, ...]]] = {
    "": {},
    "awq": {},
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
            "pack-quantized",
        ),
        "moe_sparsity_config": (None, {}),
    },
    "fbgemm_fp8": {},
    "fp8": {},
    "gptq": {"is_marlin_format": (None, False), "is_bitblas_format": (None, False)},
    "modelopt": {"quant_algo": (None, "FP8")},
    "mxfp4": {},
}
"""Each `quant_method` that is supported → its fields that would change the answer → the values that are implemented."""
_GPTQ_FORMATS = {"gptq": 1, "gptq_v2": 0}
"""Each format → what it took from zeros when it stored them."""


def check_quantization(quantization: Fields) -> None:
    """Raise ModelError naming a method, or a field of it, that is not supported."""
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
    """What a GPTQ file took from its zeros, by its format. Raises ModelError for a format that is not supported."""
    name = "checkpoint_format" if "checkpoint_format" in quantization else "format"
    told = quantization.text(name, "gptq").lower()
    if told not in _GPTQ_FORMATS:
        _refuse(quantization, name)
    return _GPTQ_FORMATS[told]


def check_groups(quantization: Fields, inputs: int, groups: int) -> None:
    """Raise ValueError where `group_size` makes another number of groups than there are scales for."""
    size = quantization.fields.get("group_size")
    if type(size) is not int:
        return
    wanted = 1 if size == -1 else -(-inputs // size) if size > 0 else 0
    if groups != wanted:
        raise ValueError(f"scales for {groups} groups do not fit {inputs} inputs with group_size {size}")


def _refuse(quantization: Fields, name: str) -> None:
    raise ModelError(
        f"{quantization.path}: field quantization_config.{name} {quantization.fields.get(name)!r} is not supported"
        f" for quant_method {quantization.text('quant_method', '')}: it changes what the model answers"
    )
