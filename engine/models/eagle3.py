"""EAGLE-3 (Li et al. 2025): a head of one layer that drafts from what goes into three layers of the served model.

    features = Wfc · [states of the three layers]                   of the token before
    h = features + attention([norm(embedding), norm(features)])      q, k, v take 2 × hidden
    h = h + mlp(norm(h))                                            the features of the next draft, until they are known
    logits = Whead · norm(h)                                        of a smaller vocabulary: token = id + d2t[id]

The published files name the layer `midlayer` or `layers.0`. `config.json` may name the three layers: on its own, a
number is that of the layer that the states go into; inside `eagle_config`, of the layer that they come out of.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from engine.errors import ModelError
from engine.kv_cache.memory import KvMemory
from engine.layers.attention_plan import AttentionPlan
from engine.layers.embedding import VOCABULARY_MULTIPLE, Embedding, Head
from engine.layers.feed_forward import FeedForward
from engine.layers.forward import Forward
from engine.layers.loader import Loader
from engine.layers.self_attention import AttentionVariant, SelfAttention
from engine.model_config.config import ModelConfig, model_config
from engine.model_config.config_class import ConfigClass
from engine.model_config.fields import has_fields, read_fields
from engine.models.llama import LLAMA
from engine.weights.checkpoint import Checkpoint

ARCHITECTURE = "LlamaForCausalLMEagle3"
EAGLE3 = ConfigClass(
    "llama",
    {
        **LLAMA.defaults,
        "num_hidden_layers": 1,
        "draft_vocab_size": None,
        "target_hidden_size": None,
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": None,
        "eagle_config": None,
    },
)
_STATES = 3
_OPTIONS = {"use_aux_hidden_state": True, "use_input_layernorm_in_first_layer": True, "use_last_layernorm": True}
"""What `eagle_config` may say of the layout that is implemented."""
_IDS = "eagle_aux_hidden_state_layer_ids"


def is_eagle3(folder: Path) -> bool:
    """Whether the folder's configuration is that of an EAGLE-3 head."""
    path = folder / "config.json"
    return has_fields(path) and ARCHITECTURE in read_fields(path).texts("architectures")


def read_eagle3_config(folder: Path) -> ModelConfig:
    """The configuration of a head's folder. Raises ModelError that names a field which is not supported."""
    config = model_config(folder, read_fields(folder / "config.json"), EAGLE3)
    if config.layers != 1:
        raise ModelError(f"{config.fields.path}: field num_hidden_layers {config.layers}: an EAGLE-3 head has 1 layer")
    for name, value in config.fields.inner("eagle_config").fields.items():
        if name in _OPTIONS and value != _OPTIONS[name]:
            raise ModelError(
                f"{config.fields.path}: field eagle_config.{name} {value!r} is not supported ({_OPTIONS[name]!r} is)"
            )
    return config


def state_layers(config: ModelConfig, target: ModelConfig) -> tuple[int, ...]:
    """Into which layers of the served model the states go that the head reads. Raises ModelError."""
    fields = config.fields
    layers = fields.integers(_IDS) or tuple(index + 1 for index in fields.inner("eagle_config").integers(_IDS))
    layers = layers or (2, target.layers // 2, target.layers - 3)
    if len(layers) != _STATES or any(not 0 <= layer < target.layers for layer in layers):
        raise ModelError(
            f"{fields.path}: field {_IDS}: the states of layers {', '.join(map(str, layers))} are asked for; a head"
            f" reads {_STATES}, and the served model's layers are 0 to {target.layers - 1}"
        )
    return layers


class Eagle3Head:
    """The head as a `DraftingModel` whose `state_layers` are the served model's.

    `embedding`: the served model's, for a head without one. Raises ModelError that names what is missing or does not
    fit.
    """

    def __init__(self, load: Loader, target: ModelConfig, embedding: Embedding) -> None:
        config, checkpoint = load.config, load.checkpoint
        self.state_layers = state_layers(config, target)
        self.state_size = _STATES * config.fields.integer("target_hidden_size", target.hidden)
        if self.state_size != _STATES * target.hidden:
            raise ModelError(
                f"{config.fields.path}: field target_hidden_size {self.state_size // _STATES}: the served model's"
                f" hidden_size is {target.hidden}"
            )
        self.heads, self.like, self.tiling = config.heads, load.like, load.tiling
        layer = "midlayer" if checkpoint.has_part("midlayer.self_attn.q_proj") else "layers.0"
        self.fuse = load.linear(["fc"], [config.hidden], self.state_size)
        self.embedding = load.embedding("embed_tokens") if checkpoint.has_part("embed_tokens") else embedding
        self.vocabulary = self.embedding.vocabulary
        if self.embedding is embedding and config.hidden != target.hidden:
            raise ModelError(f"{checkpoint.folder}: tensor embed_tokens.weight is missing: the served model's is wider")
        self.embedding_norm = load.norm(f"{layer}.input_layernorm")
        self.features_norm = load.norm(f"{layer}.hidden_norm")
        self.attention = SelfAttention(
            load,
            f"{layer}.self_attn",
            0,
            load.rotary(config.rope, config.head_dim),
            AttentionVariant(qkv_bias=config.attention_bias, output_bias=config.attention_bias),
            inputs=2 * config.hidden,
        )
        self.mlp_norm = load.norm(f"{layer}.post_attention_layernorm")
        self.mlp = FeedForward(load, f"{layer}.mlp", config.intermediate)
        self._from_normed = config.fields.flag("norm_before_residual")
        self.norm = load.norm("norm")
        drafted = config.fields.integer("draft_vocab_size", config.vocabulary)
        self.head = Head(_rows(load, "lm_head", drafted), load.tiling)
        self.tokens = vocabulary_map(checkpoint, drafted, target.vocabulary).to(load.like.device)
        self.groups = load.kv.groups()

    def features(self, states: torch.Tensor) -> torch.Tensor:
        """[rows, state size] of the served model → [rows, hidden], what the head starts from."""
        return self.fuse(states)

    def compute(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        features: torch.Tensor | None,
        plans: Sequence[AttentionPlan],
        memories: Sequence[KvMemory],
    ) -> torch.Tensor:
        """See `DraftingModel`; `features` are of the tokens before."""
        assert features is not None
        normed = self.features_norm(features)
        x = torch.cat([self.embedding_norm(self.embedding(tokens)), normed], -1)
        residual = normed if self._from_normed else features
        h = residual + self.attention(x, Forward(positions, plans, memories))
        return h + self.mlp(self.mlp_norm(h))

    def likeliest(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `DraftingModel`."""
        return self.tokens[self.head(self.norm(hidden)).argmax(-1)]


def _rows(load: Loader, name: str, rows: int) -> Embedding:
    """The head's weight [rows, hidden], padded as an embedding is."""
    weight = load.like.new_zeros(rows + -rows % VOCABULARY_MULTIPLE, load.config.hidden)
    load.checkpoint.load(f"{name}.weight", weight[:rows])
    return Embedding(weight, rows)


def vocabulary_map(checkpoint: Checkpoint, drafted: int, vocabulary: int) -> torch.Tensor:
    """[drafted] the token that each of the head's ids stands for: the id itself, plus `d2t` if that is stored.

    Raises ModelError for a map that leads out of the served model's vocabulary, contradicts `t2d`, or is missing.
    """
    ids = torch.arange(drafted)
    if "d2t" not in checkpoint:
        if drafted != vocabulary:
            raise ModelError(
                f"{checkpoint.folder}: tensor d2t is missing: the head drafts {drafted} tokens, the served model has"
                f" {vocabulary}"
            )
        return ids
    offsets = checkpoint.stored("d2t", (drafted,))
    if offsets.is_floating_point() or offsets.dtype == torch.bool:
        raise ModelError(f"{checkpoint.folder}: tensor d2t is {offsets.dtype}, and must be integers")
    tokens = ids + offsets.long()
    if bool(((tokens < 0) | (tokens >= vocabulary)).any()):
        raise ModelError(
            f"{checkpoint.folder}: tensor d2t leads to token {int(tokens.max())}, the served model has {vocabulary}"
        )
    if "t2d" in checkpoint:
        drafts = checkpoint.read("t2d").bool()
        if drafts.shape != (vocabulary,) or int(drafts.sum()) != drafted or not bool(drafts[tokens].all()):
            raise ModelError(
                f"{checkpoint.folder}: tensor t2d does not name the {drafted} tokens that d2t leads to, out of the"
                f" served model's {vocabulary}"
            )
    return tokens
