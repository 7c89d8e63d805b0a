"""Writes a trained network as an ordinary Hugging Face folder, and reads it again."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from .network import Llama, Shape
from .tokenizer import BEGIN, CHAT_TEMPLATE, END, save_tokenizer, tokenizer_config

PRICES = """\
name = "{name}"
min_cacheable_tokens = 256

# USD per million tokens.
[prices]
currency = "USD"
uncached = "0.40"
read = "0.04"
write_5m = "0.50"
write_30m = "0.60"
write_1h = "0.80"
write_12h = "1.20"
write_24h = "1.60"
output = "1.60"
"""


def config_of(shape: Shape, tokenizer: Tokenizer) -> dict[str, object]:
    """config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.width,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.context,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "rms_norm_eps": shape.norm_eps,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "use_cache": True,
        "pretraining_tp": 1,
        "bos_token_id": tokenizer.token_to_id(BEGIN),
        "eos_token_id": tokenizer.token_to_id(END),
        "pad_token_id": tokenizer.token_to_id(END),
        "torch_dtype": "bfloat16",
    }


def write_folder(folder: Path, model: Llama, tokenizer: Tokenizer) -> None:
    """Weights in bfloat16, the tokenizer and the configuration files."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: weight.detach().to("cpu", torch.bfloat16).contiguous() for name, weight in model.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    save_tokenizer(tokenizer, folder)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    write_json(folder / "config.json", config_of(model.shape, tokenizer))
    write_json(folder / "tokenizer_config.json", tokenizer_config(model.shape.context))
    generation = {
        name: tokenizer.token_to_id(token)
        for name, token in (("bos_token_id", BEGIN), ("eos_token_id", END), ("pad_token_id", END))
    }
    write_json(folder / "generation_config.json", {**generation, "do_sample": False})


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_folder(folder: Path, device: str = "cpu") -> tuple[Llama, Tokenizer]:
    """The network as it ships, its bfloat16 weights widened to float32."""
    config = json.loads((folder / "config.json").read_text())
    shape = Shape(
        vocabulary=config["vocab_size"],
        width=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        inner=config["intermediate_size"],
        head_dim=config["head_dim"],
        context=config["max_position_embeddings"],
        rope_theta=config["rope_theta"],
        norm_eps=config["rms_norm_eps"],
    )
    model = Llama(shape)
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict({name: weight.float() for name, weight in weights.items()})
    return model.to(device).eval(), Tokenizer.from_file(str(folder / "tokenizer.json"))


def folder_size(folder: Path) -> int:
    """Bytes of all files in it."""
    return sum(path.stat().st_size for path in folder.iterdir())
