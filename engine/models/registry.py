"""The registry of model families: reads a model folder's configuration and loads its model by `model_type`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.device import available_memory, return_freed_memory, should_keep_packed
from engine.errors import ModelError
from engine.kernels import packed_linear
from engine.layers.linear import Tiling
from engine.layers.loader import Loader
from engine.model_config.config import ModelConfig, check_sizes, model_config
from engine.model_config.config_class import ConfigClass
from engine.model_config.fields import Fields, has_fields, read_fields
from engine.models.decoder import Decoder
from engine.models.deepseek import DEEPSEEK_V2, DEEPSEEK_V3, KIMI_K2, deepseek_v2, deepseek_v3
from engine.models.gemma import GEMMA, GEMMA2, GEMMA3_TEXT, gemma, gemma2, gemma3
from engine.models.glm4 import GLM4, GLM4_MOE, glm4, glm4_moe
from engine.models.gpt_oss import GPT_OSS, gpt_oss
from engine.models.granite import GRANITE, granite
from engine.models.llama import LLAMA, llama
from engine.models.mistral import MISTRAL, mistral
from engine.models.mixtral import MIXTRAL, mixtral
from engine.models.olmo2 import OLMO2, olmo2
from engine.models.phi import PHI, phi
from engine.models.phi3 import PHI3, phi3
from engine.models.qwen2 import QWEN2, QWEN2_5_VL_TEXT, qwen2
from engine.models.qwen2_moe import QWEN2_MOE, qwen2_moe
from engine.models.qwen3 import QWEN3, QWEN3_VL_TEXT, qwen3, qwen3_vl
from engine.models.qwen3_moe import QWEN3_MOE, qwen3_moe
from engine.models.seed_oss import SEED_OSS, seed_oss
from engine.models.smollm3 import SMOLLM3, smollm3
from engine.models.starcoder2 import STARCODER2, starcoder2
from engine.options import KvDtype, Quantize, Tiles, Weights
from engine.quantization.quantization_config import check_quantization
from engine.weights.checkpoint import Checkpoint


@dataclass(frozen=True)
class ModelFamily:
    """How a `model_type` is read and built."""

    config_class: ConfigClass
    build: Callable[[Loader], Decoder]


FAMILIES: dict[str, ModelFamily] = {
    family.config_class.model_type: family
    for family in (
        ModelFamily(DEEPSEEK_V2, deepseek_v2),
        ModelFamily(DEEPSEEK_V3, deepseek_v3),
        ModelFamily(GEMMA, gemma),
        ModelFamily(GEMMA2, gemma2),
        ModelFamily(GEMMA3_TEXT, gemma3),
        ModelFamily(GLM4, glm4),
        ModelFamily(GLM4_MOE, glm4_moe),
        ModelFamily(GPT_OSS, gpt_oss),
        ModelFamily(GRANITE, granite),
        ModelFamily(KIMI_K2, deepseek_v3),
        ModelFamily(LLAMA, llama),
        ModelFamily(MISTRAL, mistral),
        ModelFamily(MIXTRAL, mixtral),
        ModelFamily(OLMO2, olmo2),
        ModelFamily(PHI, phi),
        ModelFamily(PHI3, phi3),
        ModelFamily(QWEN2, qwen2),
        ModelFamily(QWEN2_5_VL_TEXT, qwen2),
        ModelFamily(QWEN2_MOE, qwen2_moe),
        ModelFamily(QWEN3, qwen3),
        ModelFamily(QWEN3_MOE, qwen3_moe),
        ModelFamily(QWEN3_VL_TEXT, qwen3_vl),
        ModelFamily(SEED_OSS, seed_oss),
        ModelFamily(SMOLLM3, smollm3),
        ModelFamily(STARCODER2, starcoder2),
    )
}
MULTIPLIED_PACKED = {
    *("gemma", "gemma2", "gemma3_text", "glm4", "granite", "llama", "mistral", "olmo2", "qwen2", "qwen3", "seed_oss"),
    "smollm3",
}
"""Families whose FP8 and 4-bit weights a GPU multiplies as they are (`engine.execution.cuda`); others are decoded on
loading."""
_COPIES_SHARE = 0.25
"""Widened copies of packed weights are kept if they take no more of the device's free memory than this."""
LANGUAGE_PARTS = {
    "gemma3": "gemma3_text",
    "mistral3": "mistral",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_vl": "qwen3_vl_text",
}
"""`model_type` of a model of images and text -> that of its language part, which is served alone."""
_OF_VISION = frozenset(
    {
        *("vision_config", "image_token_id", "video_token_id", "vision_token_id"),
        *("vision_start_token_id", "vision_end_token_id"),
    }
)
_PREFIX = "language_model."
"""The prefix of a language part's tensor names."""
_TIED = {"gemma3", "mistral3"}
"""Models whose classes tie head and embedding where nothing is said."""
_OF_THE_WHOLE = ("dtype", "torch_dtype", "eos_token_id", "quantization_config", "tie_word_embeddings")
"""Fields of the whole model that hold for its language part."""


def read_config(folder: Path) -> ModelConfig:
    """The model configuration of a Hugging Face folder or a GGUF file.

    Raises ModelError that names the folder, file or field. `model_type` is checked first, since the meaning of all
    other fields depends on it.
    """
    if not folder.exists():
        raise ModelError(f"{folder}: no such model folder")
    path = folder / "config.json"
    if not has_fields(path):
        raise ModelError(f"{path}: missing; is {folder} a model folder?")
    given, prefix = read_fields(path), ""
    model_type = given.text("model_type", "")
    if model_type in LANGUAGE_PARTS:
        given, model_type, prefix = _language_part(given, model_type), LANGUAGE_PARTS[model_type], _PREFIX
    family = FAMILIES.get(model_type)
    if family is None:
        raise ModelError(_not_supported(given, model_type))
    return model_config(folder, given, family.config_class, prefix)


def _language_part(whole: Fields, whole_type: str) -> Fields:
    """The fields of the language part: its own, and those of the whole model that hold for it."""
    model_type = LANGUAGE_PARTS[whole_type]
    if "text_config" in whole:
        part = whole.inner("text_config")
    else:  # Qwen2.5-VL's first files have them beside those of the whole
        part = Fields(whole.path, {n: v for n, v in whole.fields.items() if n != "model_type" and n not in _OF_VISION})
    named = part.text("model_type", model_type)
    if named != model_type:
        raise ModelError(f"{whole.path}: field text_config: model_type {named!r} is not supported ({model_type} is)")
    of_the_whole = {name: whole.fields[name] for name in _OF_THE_WHOLE if name in whole}
    tied = whole.flag("tie_word_embeddings", whole_type in _TIED)
    if whole_type not in _TIED:  # files from before version 5 say it of the part
        tied = tied or part.flag("tie_word_embeddings")
    return Fields(whole.path, {**part.fields, **of_the_whole, "tie_word_embeddings": tied})


def _not_supported(given: Fields, model_type: str) -> str:
    supported = f"supported: {', '.join(sorted({*FAMILIES, *LANGUAGE_PARTS}))}"
    if not model_type:
        return f"{given.path}: field model_type is missing ({supported})"
    text = given.fields.get("text_config", given.fields.get("llm_config"))
    if isinstance(text, dict):
        inner = text.get("model_type")
        part = f" of model_type {inner!r}" if isinstance(inner, str) else ""
        return (
            f"{given.path}: model_type {model_type!r} is not supported: it is a model around a language model{part},"
            f" which can only be served from a folder of its own ({supported})"
        )
    return f"{given.path}: model_type {model_type!r} is not supported ({supported})"


def kept_in_tiles(model_type: str, weights: Weights, like: torch.Tensor, decoded_bytes: Callable[[], int]) -> Tiles:
    """How weights of 4 bits are kept for the GPU's kernel, where it multiplies them."""
    multiplied = (
        like.dtype == torch.bfloat16 and model_type in MULTIPLIED_PACKED and packed_linear.available(like.device)
    )
    if weights == "decoded" or not multiplied:
        return "none"
    fits = weights == "auto" and decoded_bytes() <= available_memory(like.device) * _COPIES_SHARE
    return "copy" if fits else "scratch"


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
    """Load the folder's model with `like`'s type and device.

    `tiling`: how matrix products are cut. `context_tokens`: the longest context to serve. `quantize`, `kv_dtype` and
    `weights`: the settings of these names. Raises ModelError that names what is missing or unsupported.
    """
    quantization = config.fields.inner("quantization_config")
    check_quantization(quantization)
    with Checkpoint(folder, quantization, config.prefix) as checkpoint, torch.inference_mode():
        check_sizes(config, checkpoint.stored_bytes())
        in_fp8 = quantize == "fp8" and like.device.type == "cuda" and config.model_type in MULTIPLIED_PACKED
        packed = (weights == "auto" and in_fp8) or should_keep_packed(
            weights, lambda: checkpoint.decoded_bytes(like.itemsize), like.device
        )
        few_bits = quantize not in ("none", "fp8") or (quantize == "none" and checkpoint.is_quantized())
        tiles: Tiles = "none"
        if few_bits:
            tiles = kept_in_tiles(config.model_type, weights, like, lambda: checkpoint.decoded_bytes(like.itemsize))
        load = Loader(
            checkpoint, config, like, tiling, context_tokens, quantize=quantize, kv_dtype=kv_dtype, packed=packed,
            tiles=tiles,
        )  # fmt: skip
        model = FAMILIES[config.model_type].build(load)
        checkpoint.check_all_read(config.layers, config.fields.count("num_nextn_predict_layers"))
    return_freed_memory()
    return model
