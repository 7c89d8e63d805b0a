"""Drafters with weights for the tests' tiny models: models that draft, and heads of random weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from engine.layers.linear import best_tiling
from engine.models.registry import load_model, read_config
from engine.speculation.draft_model import DraftModel, SeparateModel
from engine.speculation.drafter import Drafter, Proposal, Query
from engine.speculation.head_drafter import HeadDrafter
from engine.speculation.side_kv import SideKv
from engine.startup.draft_checkpoint import ServedParts, load_drafter
from tests.engine.conftest import TINY, VOCABULARY, Bench, make_bench, write_model

ROOMY = 1 << 40
"""Free memory that is never the reason."""


def draft_model(folder: Path, blocks: int = 64, vocabulary: int = VOCABULARY) -> DraftModel:
    """A draft model of this folder, with so many blocks of its own."""
    like = torch.zeros(())
    config, tiling = read_config(folder), best_tiling(like)
    model = load_model(folder, config, like, tiling, config.context_tokens)
    side = SideKv(folder.name, model.groups, blocks, like)
    return DraftModel(SeparateModel(model, like, tiling, vocabulary), side, config.context_tokens)


@cache
def served_parts(model: Path) -> ServedParts:
    """What is to be known of this model to draft for it."""
    bench = make_bench(model)
    runner = bench.engine.executor.runner
    return ServedParts(model, runner.model.config, runner, 2048, bench.engine.limits.budget, "digest")


def head_drafter(folder: Path, model: Path) -> HeadDrafter:
    """The drafter by the head of this folder for `model`, which reads from no runner yet."""
    drafter = load_drafter(folder, served_parts(model), ROOMY)
    assert isinstance(drafter, HeadDrafter)
    return drafter


def reading(bench: Bench, drafter: HeadDrafter) -> Bench:
    """The bench, which was made with this drafter, and now hands its hidden states to it."""
    drafter.read_from(bench.engine.executor.runner)
    return bench


class Recorder(Drafter):
    """Notes what another drafter proposes behind which tokens.

    A random drafter is never right. So of a request whose output is known (`outputs`, by id) the first drafts are
    replaced by right ones, sometimes more and sometimes fewer: the drafter goes on after any number of accepted ones.
    """

    name = "recorder"

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.outputs: dict[str, list[int]] = {}
        self.proposals: list[tuple[list[int], list[int]]] = []

    def propose(self, queries: Sequence[Query]) -> Sequence[Proposal | None]:
        answers: list[Proposal | None] = []
        for query, proposal in zip(queries, self.drafter.propose(queries), strict=True):
            answers.append(proposal)
            if proposal is not None:
                request, tokens = query.request, list(proposal.tokens)
                self.proposals.append((list(request.tokens), tokens))
                right = self.outputs.get(request.id, [])[request.output :][: 1 + len(self.proposals) % 4]
                answers[-1] = Proposal([*right, *tokens[len(right) :]][: query.most])
        return answers

    def catch_up(self) -> None:
        self.drafter.catch_up()

    def end(self, request):  # type: ignore[no-untyped-def]
        self.drafter.end(request)


def write_target(folder: Path) -> Path:
    """A tiny model with enough layers for a head that reads three."""
    return write_model(folder, num_hidden_layers=6, scale=0.2)


HEAD = {
    **TINY,
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "intermediate_size": 56,
    "draft_vocab_size": 60,
    "vocab_size": VOCABULARY,
}


def eagle3_tensors(layer: str = "midlayer", seed: int = 5) -> dict[str, torch.Tensor]:
    """The tensors of a random head of the published layout."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.3

    hidden, inner, dim = 48, 56, 8
    drafted = torch.randperm(VOCABULARY, generator=generator)[:60].sort().values
    mask = torch.zeros(VOCABULARY, dtype=torch.bool)
    mask[drafted] = True
    return {
        "fc.weight": random(hidden, 3 * hidden),
        "norm.weight": 1 + random(hidden) * 0.1,
        "lm_head.weight": random(60, hidden),
        "d2t": drafted - torch.arange(60),
        "t2d": mask,
        f"{layer}.hidden_norm.weight": 1 + random(hidden) * 0.1,
        f"{layer}.input_layernorm.weight": 1 + random(hidden) * 0.1,
        f"{layer}.post_attention_layernorm.weight": 1 + random(hidden) * 0.1,
        f"{layer}.self_attn.q_proj.weight": random(6 * dim, 2 * hidden),
        f"{layer}.self_attn.k_proj.weight": random(2 * dim, 2 * hidden),
        f"{layer}.self_attn.v_proj.weight": random(2 * dim, 2 * hidden),
        f"{layer}.self_attn.o_proj.weight": random(hidden, 6 * dim),
        f"{layer}.mlp.gate_proj.weight": random(inner, hidden),
        f"{layer}.mlp.up_proj.weight": random(inner, hidden),
        f"{layer}.mlp.down_proj.weight": random(hidden, inner),
    }


def write_head(folder: Path, tensors: dict[str, torch.Tensor] | None = None, **changes: object) -> Path:
    """A folder with an EAGLE-3 head."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**HEAD, **changes}))
    save_file(eagle3_tensors() if tensors is None else tensors, str(folder / "model.safetensors"))
    return folder


def write_mtp(folder: Path, source: Path) -> Path:
    """The model of `source`, a DeepSeek V3, with a layer for multi-token prediction that resembles its last one."""
    config = json.loads((source / "config.json").read_text())
    tensors = {name: value for path in source.glob("*.safetensors") for name, value in load_file(path).items()}
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    generator = torch.Generator().manual_seed(9)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.2

    last, name = f"model.layers.{layers - 1}.", f"model.layers.{layers}."
    more = {
        name + key.removeprefix(last): value + random(*value.shape) * 0.1
        for key, value in tensors.items()
        if key.startswith(last)
    }
    more |= {
        name + "enorm.weight": 1 + random(hidden),
        name + "hnorm.weight": 1 + random(hidden),
        name + "eh_proj.weight": random(hidden, 2 * hidden),
        name + "shared_head.norm.weight": 1 + random(hidden),
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))
    save_file({**tensors, **more}, str(folder / "model.safetensors"))
    return folder
