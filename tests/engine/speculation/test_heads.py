"""Heads that draft from the served model's hidden states: EAGLE-3 and multi-token prediction.

What they propose is compared with a reference in plain PyTorch, written from the published definitions; what requests
get, with plain decoding.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from engine.scheduling.step_work import Work
from engine.speculation.drafter import Proposal, Query
from engine.speculation.head_drafter import Eagle3Drafter, HeadDrafter
from tests.engine.conftest import Bench, Families, Run, generate, make_bench
from tests.engine.modes import MODES, assert_same, bench_of, request
from tests.engine.speculation.side_drafters import (
    HEAD,
    VOCABULARY,
    Recorder,
    eagle3_tensors,
    head_drafter,
    reading,
    write_head,
    write_mtp,
    write_target,
)
from tests.fast import examples

LENGTHS = [1, 56, 62, 63, 64, 65, 129, 300]
Reference = Callable[[Sequence[int], int], list[int]]


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("models") / "target")


@pytest.fixture(scope="session")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_head(tmp_path_factory.mktemp("models") / "head")


@pytest.fixture(scope="session")
def mtp(family_folders: Families, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mtp(tmp_path_factory.mktemp("models") / "mtp", family_folders("deepseek v3"))


@cache
def plain(folder: Path, tokenizer: Path, length: int, mode: str) -> Run:
    return bench_of(folder, tokenizer).one(request("x", length, mode))


def states_of(folder: Path, tokens: Sequence[int], layers: Sequence[int]) -> torch.Tensor:
    """[tokens, layers · hidden] what goes into these layers, all computed in one step."""
    taken: list[torch.Tensor] = []

    def take(works: Sequence[Work], states: torch.Tensor) -> None:
        taken.append(states.clone())

    bench = make_bench(folder, budget=2048)
    runner = bench.engine.executor.runner
    runner.state_layers, runner.on_states = layers, take
    bench.one(generate("x", tokens, 1))
    return taken[0]


# ---------------------------------------------------------------- EAGLE-3, as published


def rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + HEAD["rms_norm_eps"]) * weight


def rotated(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """[heads, tokens, dim]"""
    dim = x.shape[-1]
    angles = positions[:, None] / HEAD["rope_theta"] ** (torch.arange(0, dim, 2) / dim)
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
    return x * cos + torch.cat([-x[..., dim // 2 :], x[..., : dim // 2]], -1) * sin


class Eagle3Reference:
    """Drafts behind tokens, from all hidden states that precede them."""

    def __init__(self, target: Path, tensors: dict[str, torch.Tensor], *, normed_residual: bool = False) -> None:
        self.target = target
        self.weights = {name.replace("layers.0.", "midlayer."): value for name, value in tensors.items()}
        self.embedding = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
        self.normed_residual = normed_residual

    def layer(self, tokens: torch.Tensor, features: torch.Tensor, first: int) -> torch.Tensor:
        """The layer over rows whose first has the position `first`."""
        w = {name.removeprefix("midlayer."): value for name, value in self.weights.items()}
        rows, dim = len(tokens), HEAD["head_dim"]
        normed = rms(features, w["hidden_norm.weight"])
        x = torch.cat([rms(self.embedding[tokens], w["input_layernorm.weight"]), normed], -1)
        positions = torch.arange(first, first + rows, dtype=torch.float32)
        q, k, v = (linear(x, w[f"self_attn.{part}_proj.weight"]).view(rows, -1, dim).transpose(0, 1) for part in "qkv")
        q, k = rotated(q, positions), rotated(k, positions)
        mixed = scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, enable_gqa=True)[0]
        h = (normed if self.normed_residual else features) + linear(
            mixed.transpose(0, 1).reshape(rows, -1), w["self_attn.o_proj.weight"]
        )
        x = rms(h, w["post_attention_layernorm.weight"])
        gate, up = linear(x, w["mlp.gate_proj.weight"]), linear(x, w["mlp.up_proj.weight"])
        return h + linear(silu(gate) * up, w["mlp.down_proj.weight"])

    def __call__(self, tokens: Sequence[int], count: int, cut: int = 0) -> list[int]:
        """`count` drafts. `cut`: hidden states before it are not known."""
        states = states_of(self.target, tokens, (2, 3, 3))[cut:-1]
        features = linear(states, self.weights["fc.weight"])
        inputs = torch.tensor(tokens[cut + 1 :])
        drafts: list[int] = []
        while True:
            h = self.layer(inputs, features, cut + 1)[-1:]
            draft = int(linear(rms(h, self.weights["norm.weight"]), self.weights["lm_head.weight"]).argmax())
            drafts.append(draft + int(self.weights["d2t"][draft]))
            if len(drafts) == count:
                return drafts
            inputs, features = torch.cat([inputs, torch.tensor(drafts[-1:])]), torch.cat([features, h])


def recorded(folder: Path, model: Path, **options: Any) -> tuple[Bench, Recorder, HeadDrafter]:
    """A bench that serves `model`, and a recorder of what the head of `folder` proposes."""
    drafter = head_drafter(folder, model)
    recorder = Recorder(drafter)
    return reading(make_bench(model, drafters=[recorder], **options), drafter), recorder, drafter


@pytest.mark.parametrize("layer", ["midlayer", "layers.0"])
@pytest.mark.parametrize("normed_residual", [False, True])
def test_eagle3_proposes_what_the_published_definition_gives(
    target: Path, tmp_path: Path, layer: str, normed_residual: bool
):
    """Over block edges and several chunks of a prompt, whatever was accepted before."""
    tensors = eagle3_tensors(layer)
    folder = write_head(tmp_path / "head", tensors, norm_before_residual=normed_residual)
    reference = Eagle3Reference(target, tensors, normed_residual=normed_residual)
    bench, recorder, _ = recorded(folder, target, budget=128, running=16)
    for length in (1, 62, 200):
        wanted = request(str(length), length, "greedy", output=30)
        recorder.outputs[wanted.id] = make_bench(target, context=512).one(wanted).tokens
        bench.one(wanted)
    assert bench.engine.speculator.totals.accepted > 30
    assert len(recorder.proposals) > 20
    for tokens, proposal in recorder.proposals[::4]:
        assert proposal == reference(tokens, len(proposal))


def test_two_continuations_of_one_block(target: Path, head: Path):
    """A head's KV of a block depends on no token behind it: the second prompt reads what the first left, and drafts as
    if it had computed it. The block's last hidden state is kept with it."""
    block = [(7 * i * i + 3 * i) % VOCABULARY for i in range(64)]
    reference = Eagle3Reference(target, eagle3_tensors())
    bench, recorder, drafter = recorded(head, target)
    for id, behind in (("a", [5, 6, 7, 8, 9, 10]), ("b", [11, 12, 13])):
        before, rows = len(recorder.proposals), drafter.runner.rows
        run = bench.one(generate(id, block + behind, 10))
        assert run.done is not None
        assert run.done.counts.read_hbm == (0 if id == "a" else 64)
        computed = drafter.runner.rows - rows
        assert (computed > 64) == (id == "a")
        for tokens, proposal in recorder.proposals[before:]:
            assert proposal == reference(tokens, len(proposal))


def test_on_a_hit_without_its_kv_the_head_attends_from_the_cut_on(target: Path, head: Path):
    """The first hidden state behind the cut is that of position 128."""
    bench, recorder, drafter = recorded(head, target)
    runner = bench.engine.executor.runner
    runner.on_states = None
    bench.one(request("before", 150, "greedy", output=1))
    reading(bench, drafter)
    run = bench.one(request("x", 150, "greedy", output=12))
    assert run.done is not None
    assert run.done.counts.read_hbm == 128
    reference = Eagle3Reference(target, eagle3_tensors())
    assert recorder.proposals
    for tokens, proposal in recorder.proposals:
        assert proposal == reference(tokens, len(proposal), cut=128)


def test_what_a_head_makes_of_its_own_states_is_never_published(target: Path, head: Path):
    """Blocks that were filled while it drafted are what a cold prompt of the same tokens gives, to the bit."""
    found = []
    for cold in (False, True):
        bench, _, drafter = recorded(head, target, budget=512)
        run = bench.one(request("x", 20, "greedy", output=150))
        if cold:
            tokens = [*((i * i * 31 + 17 * i + 20) % VOCABULARY for i in range(20)), *run.tokens]
            bench, _, drafter = recorded(head, target, budget=512)
            bench.one(generate("x", tokens, 9))
        blocks = [block for pool in drafter.side.pool.pools for block in range(pool.total)]
        assert drafter.side.pool.cached_blocks >= 2
        assert drafter.side.tails is not None
        kept = drafter.side.memories[0].data
        found.append({round(float(kept[block][..., 1:, :].sum()), 3) for block in blocks[: kept.shape[0]]})
    assert len(found[0] & found[1]) >= 2


# ---------------------------------------------------------------- MTP


def mtp_reference(folder: Path) -> Reference:
    """The published layer by transformers: a model of one layer whose inputs are given as embeddings."""
    from transformers import AutoConfig, DeepseekV3Model

    whole = load_file(folder / "model.safetensors")
    config = AutoConfig.from_pretrained(folder, num_hidden_layers=1, first_k_dense_replace=0)
    config._attn_implementation = "eager"
    name = f"model.layers.{json.loads((folder / 'config.json').read_text())['num_hidden_layers']}."
    own = {key.removeprefix(name): value for key, value in whole.items() if key.startswith(name)}
    model = DeepseekV3Model(config).eval()
    wanted = model.state_dict()
    stacked = _stacked(own)
    loaded = {f"layers.0.{key}": value for key, value in stacked.items() if f"layers.0.{key}" in wanted}
    model.load_state_dict(
        {**loaded, "norm.weight": own["shared_head.norm.weight"], "embed_tokens.weight": wanted["embed_tokens.weight"]}
    )

    def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps) * weight

    @torch.no_grad()
    def reference(tokens: Sequence[int], count: int) -> list[int]:
        states = states_of(folder, tokens, (2,))[:-1]
        inputs, drafts = torch.tensor(tokens[1:]), []
        while True:
            embedded = whole["model.embed_tokens.weight"][inputs]
            x = torch.cat([normed(embedded, own["enorm.weight"]), normed(states, own["hnorm.weight"])], -1)
            positions = torch.arange(1, len(inputs) + 1)[None]
            h = model(inputs_embeds=linear(x, own["eh_proj.weight"])[None], position_ids=positions).last_hidden_state
            drafts.append(int(linear(h[0, -1], whole["lm_head.weight"]).argmax()))
            if len(drafts) == count:
                return drafts
            inputs, states = torch.cat([inputs, torch.tensor(drafts[-1:])]), torch.cat([states, h[0, -1:]])

    return reference


def _stacked(own: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The layer's tensors, its experts stacked as transformers has them."""
    experts = sorted({int(key.split(".")[2]) for key in own if key.startswith("mlp.experts.")})
    gates = [torch.cat([own[f"mlp.experts.{at}.{part}_proj.weight"] for part in ("gate", "up")]) for at in experts]
    return {
        **own,
        "mlp.experts.gate_up_proj": torch.stack(gates),
        "mlp.experts.down_proj": torch.stack([own[f"mlp.experts.{at}.down_proj.weight"] for at in experts]),
    }


@pytest.mark.slow
def test_mtp_proposes_what_the_published_layer_gives(mtp: Path):
    reference = mtp_reference(mtp)
    bench, recorder, _ = recorded(mtp, mtp, budget=128, running=16, context=512)
    for length in (1, 62, 200):
        wanted = request(str(length), length, "greedy", output=30)
        recorder.outputs[wanted.id] = make_bench(mtp, context=512).one(wanted).tokens
        bench.one(wanted)
    assert bench.engine.speculator.totals.accepted > 30
    assert len(recorder.proposals) > 20
    for tokens, proposal in recorder.proposals[::4]:
        assert proposal == reference(tokens, len(proposal))


# ---------------------------------------------------------------- exactness


@settings(max_examples=examples(15), deadline=None)
@given(data=st.data())
def test_requests_get_what_plain_decoding_gives(target: Path, head: Path, tokenizer: Path, data: st.DataObject):
    drafter = head_drafter(head, target)
    bench = reading(bench_of(target, tokenizer, drafters=[drafter]), drafter)
    expected: dict[str, Run] = {}
    for id in "abcd"[: data.draw(st.integers(1, 4), "requests")]:
        length, mode = data.draw(st.sampled_from(LENGTHS), "length"), data.draw(st.sampled_from(sorted(MODES)), "mode")
        expected[id] = plain(target, tokenizer, length, mode)
        bench.add(request(id, length, mode))
        for _ in range(data.draw(st.integers(0, 3), "steps before the next")):
            if bench.engine.busy:
                bench.step()
    bench.finish()
    assert drafter in bench.engine.speculator.drafters
    drafter.side.pool.check()
    for id, wanted in expected.items():
        assert_same(bench.runs[id], wanted)


@pytest.mark.parametrize("swap", [0, 12])
def test_preemption(target: Path, head: Path, tokenizer: Path, swap: int):
    expected = bench_of(target, tokenizer).one(request("x", 129, "penalties", output=70))
    drafter = head_drafter(head, target)
    bench = reading(
        bench_of(target, tokenizer, blocks=6, budget=200, running=4, swap=swap, drafters=[drafter]), drafter
    )
    bench.add(request("old", 130, "greedy", output=70))
    young = bench.add(request("young", 129, "penalties", output=70, read=False, lane="batch"))
    bench.finish()
    assert bench.engine.scheduler.preemptions
    assert_same(young, expected)
    assert drafter in bench.engine.speculator.drafters


@pytest.mark.slow
def test_mtp_requests_get_what_plain_decoding_gives(mtp: Path, tokenizer: Path):
    for mode in ("greedy", "penalties", "grammar"):
        drafter = head_drafter(mtp, mtp)
        bench = reading(bench_of(mtp, tokenizer, drafters=[drafter]), drafter)
        runs = {length: bench.add(request(str(length), length, mode)) for length in (1, 64, 129)}
        bench.finish()
        for length, run in runs.items():
            assert_same(run, plain(mtp, tokenizer, length, mode))


# ---------------------------------------------------------------- what is held, and until when


def test_requests_that_ended_before_they_decoded_leave_nothing(target: Path, head: Path) -> None:
    drafter = head_drafter(head, target)
    bench = reading(make_bench(target, drafters=[drafter], blocks=200), drafter)
    for number in range(3):
        bench.one(generate(f"one{number}", [(number + at) % 131 for at in range(200)], 1, store="none"))
    assert (drafter.waiting_rows, len(drafter.side), drafter.side.pool.referenced_blocks) == (0, 0, 0)
    bench.add(generate("stopped", list(range(120)) * 3, 50, store="none"))
    bench.step()
    assert drafter.waiting_rows
    bench.engine.abort("stopped")
    bench.finish()
    assert (drafter.waiting_rows, len(drafter.side), drafter.side.pool.referenced_blocks) == (0, 0, 0)


class FailingHead(Eagle3Drafter):
    failing = False

    def propose(self, queries: Sequence[Query]) -> Sequence[Proposal | None]:
        if self.failing:
            raise RuntimeError("broken")
        return super().propose(queries)


def test_a_head_that_fails_is_handed_no_more_states_and_holds_none(target: Path, head: Path) -> None:
    drafter = head_drafter(head, target)
    drafter.__class__ = FailingHead
    assert isinstance(drafter, FailingHead)
    bench = reading(make_bench(target, drafters=[drafter]), drafter)
    bench.one(generate("good", range(20), 10))
    drafter.failing = True
    bench.one(generate("bad", range(30), 10, store="none"))
    assert bench.engine.speculator.off == "failed"
    assert bench.engine.executor.runner.on_states is None
    assert (drafter.waiting_rows, len(drafter.side), drafter.side.pool.referenced_blocks) == (0, 0, 0)
    bench.one(generate("after", range(40), 10, store="none"))
    assert drafter.waiting_rows == 0
