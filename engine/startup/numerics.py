"""The numerics id: what decides the bits of a block of KV beside weights and tokens.

A record on disk is read only by a replica with the same id: another backend, other kernels, other cuts of sums, another
KV format or another fallback would make other bits of the same prompt, and cold would not equal warm (C2).
"""

from __future__ import annotations

import platform
from dataclasses import astuple

import torch

from engine.execution.model_runner import ModelRunner
from engine.layers.attention_plan import CUTS
from engine.layers.decoder_layer import DecoderLayer
from engine.layers.moe import MixtureOfExperts


def numerics_id(runner: ModelRunner, kv_dtype: str, attention: str = "") -> str:
    """The id of a runner that is ready: its self-test has chosen. `kv_dtype`: the setting. `attention`: what computes
    it in place of our kernels, if anything does."""
    device, tiling = runner.device, runner.tiling
    parts: dict[str, object] = {
        "backend": type(runner).__name__,
        "device": _device(device),
        "torch": torch.__version__,
        "cuts": CUTS.get(device.type),
        "tiling": (tiling.row_multiple, tiling.row_tile, tiling.least),
        "prefill_tile": runner.prefill_tile,
        "fused": runner.fused_attention,
        "threads": runner.threads.counts if device.type == "cpu" else (),
        "weights": runner.model.weight_forms,
        "kv": kv_dtype,
        "kernels": runner.numerics,
        "tensor_parallel": 1,
    }
    if any(
        isinstance(layer, DecoderLayer) and isinstance(layer.mlp, MixtureOfExperts) for layer in runner.model.layers
    ):
        # Once they were added up in the model's type, and chosen by their weights.
        parts["experts"] = "fp32"
    if attention:
        parts["attention"] = attention
    return " ".join(f"{name}={_text(value)}" for name, value in parts.items())


def _device(device: torch.device) -> str:
    if device.type != "cuda":
        mkldnn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        return f"{platform.machine()}/{torch.backends.cpu.get_cpu_capability()}/mkldnn={mkldnn}"
    import triton  # noqa: PLC0415  # a CPU does without

    properties = torch.cuda.get_device_properties(device)
    return (
        f"{properties.name}/{properties.major}.{properties.minor}/cuda={torch.version.cuda}/triton={triton.__version__}"
    )


def _text(value: object) -> str:
    return str(astuple(value) if hasattr(value, "__dataclass_fields__") else value).replace(" ", "")  # type: ignore[call-overload]
