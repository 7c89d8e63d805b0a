"""Which architecture a `model_type` is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from engine.device import keep_packed
from engine.errors import ModelError
from engine.layers.linear import Tiling
from engine.models.config import LANGUAGE_PARTS, ModelConfig, check_sizes
from engine.models.decoder import Decoder
from engine.models.deepseek import deepseek_v2, deepseek_v3
from engine.models.gemma import gemma2, gemma3
from engine.models.gpt_oss import gpt_oss
from engine.models.llama import llama
from engine.models.mistral import mistral
from engine.models.mixtral import mixtral
from engine.models.phi3 import phi3
from engine.models.qwen2 import qwen2
from engine.models.qwen3 import qwen3
from engine.models.qwen3_moe import qwen3_moe
from engine.options import KvDtype, Quantize, Weights
from engine.weights.checkpoint import Checkpoint
from engine.weights.loader import Loader

ARCHITECTURES: dict[str, Callable[[Loader], Decoder]] = {
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "gpt_oss": gpt_oss,
    "llama": llama,
    "mistral": mistral,
    "mixtral": mixtral,
    "phi3": phi3,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "qwen3_moe": qwen3_moe,
}


def load_model(
    folder: Path,
    config: ModelConfig,
    like: torch.Tensor,
    tiling: Tiling,
    context_tokens: int,
    *,
    quantize: Quantize = "none",
    kv_dtype: KvDtype = "auto",
    weights: Weights = "decoded",
) -> Decoder:
    """Load the folder's weights as `like`'s type on its device. Raises ModelError naming what is unsupported."""
    architecture = ARCHITECTURES.get(config.model_type)
    if architecture is None:
        raise ModelError(
            f"{folder / 'config.json'}: model_type {config.model_type!r} is not supported"
            f" (supported: {', '.join(sorted({*ARCHITECTURES, *LANGUAGE_PARTS}))})"
        )
    with Checkpoint(folder, config.fields.inner("quantization_config"), config.prefix) as checkpoint, torch.inference_mode():
        check_sizes(config, sum(file.stat().st_size for file in folder.glob("*.safetensors")))
        packed = keep_packed(weights, lambda: checkpoint.decoded_bytes(like.itemsize), like.device)
        load = Loader(
            checkpoint, config, like, tiling, context_tokens, quantize=quantize, kv_dtype=kv_dtype, packed=packed
        )
        model = architecture(load)
        checkpoint.check_all_read(config.layers, config.fields.count("num_nextn_predict_layers"))
        return model
