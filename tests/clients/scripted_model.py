"""A model folder whose answers are a script, for clients whose prompts are longer than the demo model's context.

The engine really computes them: a Llama of one layer without attention, in which each token leads to one other. A part
of an answer is a token of its own, and the chat template opens the answer with the token of the script's step. A word
in a user's message tells which script it is, `script:NAME`; its step is how often the assistant has spoken since.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import pre_tokenizers

from tests.e2e.processes import ROOT

CONTEXT = 131_072
_SOURCE = ROOT / "models" / "tool-caller"
_END = "<|end|>"
_OTHERWISE = "As you like."
_CLOSING = ('"}', '"', "}", "]", '{"', ":", "0", "true")
"""What a grammar's output goes on with where the script has nothing for it: what ends it soonest, first."""
_HEAD = 16
_TEMPLATE = """\
{{- '<|begin|>' -}}
{%- set step = namespace(name='otherwise', at=0) -%}
{%- for message in messages -%}
{%- set content = message['content'] or '' -%}
{{- '<|' ~ message['role'] ~ '|>' ~ content ~ '<|end|>' -}}
{%- if message['role'] == 'assistant' -%}{%- set step.at = step.at + 1 -%}{%- endif -%}
{%- for name in NAMES -%}
{%- if message['role'] == 'user' and 'script:' ~ name in content -%}
{%- set step.name = name -%}{%- set step.at = 0 -%}
{%- endif -%}
{%- endfor -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|' ~ step.name ~ '-' ~ step.at ~ '|>' -}}{%- endif -%}
"""


def call(name: str, **arguments: Any) -> str:
    """An answer that calls a tool, as a template without tools has them."""
    return f"Tool call: {json.dumps({'name': name, 'arguments': arguments})}"


def make_scripted_model(folder: Path, scripts: Mapping[str, Sequence[str]], context: int = CONTEXT) -> Path:
    """A model of these scripts: name -> the answers, one for each step."""
    folder.mkdir(parents=True)
    tokenizer = json.loads((_SOURCE / "tokenizer.json").read_text())
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    added: list[dict[str, Any]] = tokenizer["added_tokens"]
    size = max(*vocabulary.values(), *(token["id"] for token in added)) + 1
    vocabulary |= {token["content"]: token["id"] for token in added}  # else their ids are counted anew
    end = vocabulary[_END]
    chains: list[list[int]] = []
    for name, answers in {"otherwise": [_OTHERWISE] * 9, **scripts}.items():
        for step, answer in enumerate(answers):
            opening = {**added[0], "id": size, "content": f"<|{name}-{step}|>", "special": True}
            added.append(opening)
            vocabulary[opening["content"]] = size
            pieces = [] if chains and name == "otherwise" else _pieces(answer, vocabulary)
            if pieces:
                vocabulary |= {piece: size + 1 + at for at, piece in enumerate(pieces)}
                chains.append([*range(size, size + 1 + len(pieces)), end])
            else:
                chains.append([size, chains[0][1]])
            size += 1 + len(pieces)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = json.loads((_SOURCE / "tokenizer_config.json").read_text())
    settings |= {"model_max_length": context}
    del settings["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(_TEMPLATE.replace("NAMES", json.dumps(list(scripts))))
    (folder / "turnpike.toml").write_text((_SOURCE / "turnpike.toml").read_text().replace("tool-caller", "scripted"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end, "do_sample": False}))
    closing = [end, *(vocabulary[_spelled(text)] for text in _CLOSING if _spelled(text) in vocabulary)]
    save_file(_weights(size, chains, closing), str(folder / "model.safetensors"), metadata={"format": "pt"})
    hidden = _hidden(chains)
    config = json.loads((_SOURCE / "config.json").read_text())
    config |= {
        "vocab_size": size,
        "hidden_size": hidden,
        "intermediate_size": _HEAD,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": _HEAD,
        "max_position_embeddings": context,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _spelled(text: str) -> str:
    """The text as a byte-level vocabulary writes it."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return "".join(piece for piece, _ in level.pre_tokenize_str(text))


def _pieces(answer: str, vocabulary: Mapping[str, int]) -> list[str]:
    """The answer in words, as many in a piece as make it one that no vocabulary has."""
    pieces: list[str] = []
    piece = ""
    for word in re.findall(r"\s*\S+\s*$|\s*\S+", answer):
        piece += _spelled(word)
        if piece not in vocabulary and piece not in pieces:
            pieces.append(piece)
            piece = ""
    while piece and pieces:
        piece = pieces.pop() + piece
        if piece not in vocabulary and piece not in pieces:
            return [*pieces, piece]
    assert not piece, f"{answer!r} is a token of the vocabulary already"
    return pieces


def _hidden(chains: Sequence[Sequence[int]]) -> int:
    """A dimension for each token that leads somewhere, and one for all others."""
    states = 1 + sum(len(chain) - 1 for chain in chains)
    return -(-states // 64) * 64


def _weights(size: int, chains: Sequence[Sequence[int]], closing: Sequence[int]) -> dict[str, torch.Tensor]:
    hidden = _hidden(chains)
    embedding, head = torch.zeros(size, hidden), torch.zeros(size, hidden)
    embedding[:, 0] = 1.0
    for at, token in enumerate(closing):
        head[token, 0] = 1.0 - at / 16
    state = 0
    for chain in chains:
        for token, following in pairwise(chain):
            state += 1
            embedding[token] = 0.0
            embedding[token, state] = 1.0
            head[following, state] = 8.0
    layer = "model.layers.0"
    zeros = {
        **{f"self_attn.{name}_proj": (_HEAD, hidden) for name in "qkv"},
        "self_attn.o_proj": (hidden, _HEAD),
        "mlp.gate_proj": (_HEAD, hidden),
        "mlp.up_proj": (_HEAD, hidden),
        "mlp.down_proj": (hidden, _HEAD),
    }
    weights = {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": head,
        "model.norm.weight": torch.ones(hidden),
        f"{layer}.input_layernorm.weight": torch.ones(hidden),
        f"{layer}.post_attention_layernorm.weight": torch.ones(hidden),
        **{f"{layer}.{name}.weight": torch.zeros(shape) for name, shape in zeros.items()},
    }
    return {name: tensor.bfloat16() for name, tensor in weights.items()}
