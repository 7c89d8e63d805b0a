"""Writes models as GGUF files, as llama.cpp's converter does, with the `gguf` package: its writer and its quantizers.

Where that has no quantizer (the K types), random blocks are written: any bytes are a weight.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file

HALVES = {
    **{"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,)},
    **{"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)},
}
"""The bytes of a block at which numbers in fp16 begin."""
ARCHITECTURES = {"gemma3_text": "gemma3", "qwen3_moe": "qwen3moe", "mixtral": "llama", "mistral": "llama"}
BLOCK = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.qkv_proj": "attn_qkv",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}
GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
EXPERTS = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}


def random_blocks(outputs: int, inputs: int, kind: str, chance: np.random.Generator) -> np.ndarray[Any, Any]:
    """A random weight of this type, as bytes [outputs, bytes of a row]."""
    elements, nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = chance.integers(0, 256, (outputs, inputs // elements, nbytes), dtype=np.uint8)
    for at in HALVES[kind]:
        halves = chance.normal(0, 2e-3, blocks.shape[:2]).astype(np.float16)
        blocks[..., at : at + 2] = halves[..., None].view(np.uint8)
    return blocks.reshape(outputs, -1)


def fits(weight: np.ndarray[Any, Any], kind: str) -> bool:
    """Whether the rows are whole blocks of this type."""
    return weight.shape[-1] % gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][0] == 0


def permuted(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """The rows of Llama's queries and keys as llama.cpp has them."""
    parts = weight.reshape(heads, 2, len(weight) // heads // 2, *weight.shape[1:])
    return parts.swapaxes(1, 2).reshape(weight.shape)


def tensors_of(folder: Path, config: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """The folder's tensors in fp32 under GGUF's names, in llama.cpp's order of rows."""
    stored = {
        name: each.float().numpy() for file in folder.glob("*.safetensors") for name, each in load_file(file).items()
    }
    gemma, llama = config["model_type"].startswith("gemma"), config["model_type"] in {"llama", "mistral", "mixtral"}
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    experts: dict[str, dict[int, np.ndarray[Any, Any]]] = {}
    for name, plain in stored.items():
        tensor = plain
        layer, _, last = name.rpartition(".")
        if layer in WHOLE:
            tensors[f"{WHOLE[layer]}.{last}"] = tensor + 1 if gemma and layer == "model.norm" else tensor
            continue
        _, _, index, *parts = layer.split(".")
        if "experts" in parts:
            kind = f"blk.{index}.ffn_{EXPERTS[parts[-1]]}_exps.{last}"
            experts.setdefault(kind, {})[int(parts[-2])] = tensor
            continue
        part = ".".join(parts)
        if gemma and part.endswith("norm"):
            tensor = tensor + 1
        if llama and part.endswith(("q_proj", "k_proj")):
            count = "num_attention_heads" if part.endswith("q_proj") else "num_key_value_heads"
            tensor = permuted(tensor, config[count])
        tensors[f"blk.{index}.{(BLOCK | GEMMA if gemma else BLOCK)[part]}.{last}"] = tensor
    tensors |= {kind: np.stack([each[at] for at in range(len(each))]) for kind, each in experts.items()}
    return tensors


def write_metadata(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    """What llama.cpp's converter writes of a `config.json`."""
    rope = config.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope) or config.get("rope_scaling") or {}
    heads = config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope.get("rope_theta", config.get("rope_theta", 10000.0)))
    dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    partial = rope.get("partial_rotary_factor", config.get("partial_rotary_factor")) or 1.0
    writer.add_rope_dimension_count(int(dim * partial))
    writer.add_vocab_size(config["vocab_size"])
    kind = rope.get("rope_type", "default")
    if kind in {"linear", "yarn"}:
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    if "original_max_position_embeddings" in rope:
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    slides = config["model_type"] not in {"qwen2", "qwen3_moe"} or config.get("use_sliding_window")
    if config.get("sliding_window") and slides:
        writer.add_sliding_window(config["sliding_window"])
    if config.get("attn_logit_softcapping"):
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    if config.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    experts = config.get("num_experts") or config.get("num_local_experts")
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def rotary_tensors(config: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """The tensors that the converter makes of Llama 3's and Phi's scaling."""
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") == "longrope":
        return {
            f"rope_factors_{kind}.weight": np.array(rope[f"{kind}_factor"], np.float32) for kind in ("short", "long")
        }
    if rope.get("rope_type") != "llama3":
        return {}
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    length = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
    smooth = (rope["original_max_position_embeddings"] / length - rope["low_freq_factor"]) / (
        rope["high_freq_factor"] - rope["low_freq_factor"]
    )
    between = 1 / ((1 - smooth) / rope["factor"] + smooth)
    factors = np.where(length < high, 1.0, np.where(length > low, rope["factor"], between))
    return {"rope_freqs.weight": factors.astype(np.float32)}


def write_tokenizer(
    writer: gguf.GGUFWriter, folder: Path, vocabulary: int, *, pre: str = "gpt-2", template: bool = True
) -> None:
    """The byte-level tokenizer of a folder."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    ids = dict(tokenizer["model"]["vocab"])
    added = {each["content"]: each for each in tokenizer["added_tokens"]}
    ids |= {content: each["id"] for content, each in added.items()}
    texts = {token: text for text, token in ids.items()}
    names = [texts.get(token, f"[PAD{token}]") for token in range(vocabulary)]
    kinds = [
        (gguf.TokenType.CONTROL if added[text]["special"] else gguf.TokenType.USER_DEFINED)
        if text in added
        else gguf.TokenType.UNUSED if token not in texts
        else gguf.TokenType.NORMAL
        for token, text in enumerate(names)
    ]  # fmt: skip
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(names)
    writer.add_token_types(kinds)
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    for role in ("bos", "eos"):
        if (text := config.get(f"{role}_token")) is not None:
            getattr(writer, f"add_{role}_token_id")(ids[text])
    writer.add_add_bos_token(bool(config.get("add_bos_token")))
    if template and "chat_template" in config:
        writer.add_chat_template(config["chat_template"])


Kinds = Callable[[str, "np.ndarray[Any, Any]"], str]
"""Name and weight → the type that it is written in."""


def write_gguf(
    folder: Path,
    path: Path,
    kind: str | Kinds = "F32",
    *,
    tokenizer: Path | None = None,
    changes: Mapping[str, object] | None = None,
    more: Mapping[str, tuple[str, np.ndarray[Any, Any]]] | None = None,
    made_up: bool = False,
    **own: Any,
) -> Path:
    """The model of a Hugging Face folder as a GGUF file. Weights of a type without a quantizer become random, and all
    of few bits if they are to be `made_up`.

    `tokenizer`: the folder whose tokenizer it gets; without one its tokens are single bytes. `changes`: metadata with
    other values, or None to leave it out. `more`: tensors beside the model's, and their types.
    """
    config = json.loads((folder / "config.json").read_text())
    architecture = ARCHITECTURES.get(config["model_type"], config["model_type"])
    writer = gguf.GGUFWriter(path, architecture, **own)
    write_metadata(writer, config)
    if tokenizer is not None:
        write_tokenizer(writer, tokenizer, config["vocab_size"])
    else:
        write_letters(writer, config["vocab_size"])
    values = writer.kv_data[0]
    for key, value in (changes or {}).items():
        values.pop(key, None)
        if value is not None:
            writer.add_key_value(key, value, _type_of(value))
    chance = np.random.default_rng(5)
    for name, tensor in {**tensors_of(folder, config), **rotary_tensors(config)}.items():
        wanted = (kind if isinstance(kind, str) else kind(name, tensor)) if tensor.ndim > 1 else "F32"
        wanted = "F32" if "ffn_gate_inp" in name else wanted
        type_ = gguf.GGMLQuantizationType[wanted]
        if wanted in HALVES and (made_up or wanted.endswith("_K")):
            raw = random_blocks(int(np.prod(tensor.shape[:-1])), tensor.shape[-1], wanted, chance)
            writer.add_tensor(name, raw.reshape(*tensor.shape[:-1], -1), raw_dtype=type_)
        elif wanted == "F32":
            writer.add_tensor(name, tensor)
        else:
            writer.add_tensor(name, gguf.quants.quantize(tensor, type_), raw_dtype=type_)
    for name, (wanted, tensor) in (more or {}).items():
        type_ = gguf.GGMLQuantizationType[wanted]
        if wanted == "F32":
            writer.add_tensor(name, tensor)
        else:
            row = tensor.shape[-1] // gguf.GGML_QUANT_SIZES[type_][0] * gguf.GGML_QUANT_SIZES[type_][1]
            writer.add_tensor(name, np.zeros((*tensor.shape[:-1], row), np.uint8), raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _type_of(value: object) -> gguf.GGUFValueType:
    if isinstance(value, int) and not isinstance(value, bool):
        return gguf.GGUFValueType.UINT32 if 0 <= value < 1 << 32 else gguf.GGUFValueType.INT64
    return gguf.GGUFValueType.get_type(value)


def write_letters(writer: gguf.GGUFWriter, vocabulary: int) -> None:
    """A byte-level tokenizer without merges: the bytes, as many as there are rows."""
    letters = [chr(code) for code in range(33, 33 + vocabulary)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(letters)
    writer.add_token_types([gguf.TokenType.NORMAL] * vocabulary)
    writer.add_token_merges([])


def dequantized_twin(path: Path, plain: Path, folder: Path) -> Path:
    """A folder of Hugging Face's with the numbers of a GGUF file by `gguf`'s own decoding; `plain`: the folder from
    which it was written, for names, shapes and configuration."""
    config = json.loads((plain / "config.json").read_text())
    stored = {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in gguf.GGUFReader(path).tensors
    }
    model_type = config["model_type"]
    gemma, llama = model_type.startswith("gemma"), model_type in {"llama", "mistral", "mixtral"}
    twin = {}
    for file in plain.glob("*.safetensors"):
        for name, before in load_file(file).items():
            layer, _, last = name.rpartition(".")
            if layer in WHOLE:
                found = stored[f"{WHOLE[layer]}.{last}"]
                part = layer
            else:
                _, _, index, *parts = layer.split(".")
                part = ".".join(parts)
                if "experts" in parts:
                    found = stored[f"blk.{index}.ffn_{EXPERTS[parts[-1]]}_exps.{last}"][int(parts[-2])]
                else:
                    found = stored[f"blk.{index}.{(BLOCK | GEMMA if gemma else BLOCK)[part]}.{last}"]
            if llama and part.endswith(("q_proj", "k_proj")):
                count = config["num_attention_heads" if part.endswith("q_proj") else "num_key_value_heads"]
                pairs = found.reshape(count, len(found) // count // 2, 2, *found.shape[1:])
                found = pairs.swapaxes(1, 2).reshape(found.shape)
            if gemma and part.endswith("norm"):
                found = found - 1
            twin[name] = torch.from_numpy(np.array(found, np.float32)).view(before.shape)
    folder.mkdir()
    save_file(twin, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder
