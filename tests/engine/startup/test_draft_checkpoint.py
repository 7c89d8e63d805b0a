"""What cannot draft for the served model is refused at start, by name, with what would fit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.errors import EngineError
from engine.options import parse_speculation
from engine.startup.assembly import assemble
from engine.startup.draft_checkpoint import ServedParts, load_drafter
from engine.startup.options import ReplicaOptions
from engine.weights.checkpoint import Checkpoint
from tests.engine.conftest import Bench, make_bench, write_model
from tests.engine.speculation.side_drafters import ROOMY, eagle3_tensors, write_head, write_target


def served_parts(bench: Bench, folder: Path) -> ServedParts:
    runner = bench.engine.executor.runner
    return ServedParts(folder, runner.model.config, runner, 2048, 256, "digest")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("served") / "target")


@pytest.fixture(scope="module")
def served(target: Path) -> ServedParts:
    return served_parts(make_bench(target), target)


def write_tokens(folder: Path, changes: dict[str, int] | None = None, more: int = 0) -> None:
    vocabulary = {f"t{at}": at for at in range(125 + more)} | (changes or {})
    added = [{"id": 125 + more, "content": "<end>"}]
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": added}))


def refusal(folder: Path, served: ServedParts, free: int = ROOMY) -> str:
    with pytest.raises(EngineError) as caught:
        load_drafter(folder, served, free)
    return str(caught.value)


# ---------------------------------------------------------------- draft models


@pytest.fixture
def with_tokens(target: Path, served: ServedParts, tmp_path: Path) -> ServedParts:
    """The served model, in a folder with a tokenizer."""
    folder = tmp_path / "served"
    shutil.copytree(target, folder)
    write_tokens(folder)
    return ServedParts(folder, served.config, served.runner, 2048, 256, "digest")


def test_the_same_tokens_may_be_in_a_vocabulary_of_another_size(with_tokens: ServedParts, tmp_path: Path):
    """Models of one family are padded differently."""
    folder = write_model(tmp_path / "draft", seed=4)
    write_tokens(folder)
    assert load_drafter(folder, with_tokens, ROOMY).name == "draft-model"


def test_another_tokenizer(with_tokens: ServedParts, tmp_path: Path):
    folder = write_model(tmp_path / "draft", seed=4)
    fitting = f"a draft model needs the tokenizer of {with_tokens.folder}"
    assert "tokenizer.json: cannot be read: No such file" in refusal(folder, with_tokens)
    write_tokens(folder, {"t7": 8, "t8": 7})
    message = refusal(folder, with_tokens)
    assert "token 7 is 't8', in the served model 't7'" in message
    assert fitting in message
    write_tokens(folder, more=2)
    assert "token 125 is 't125', in the served model '<end>'" in refusal(folder, with_tokens)
    (folder / "tokenizer.json").write_text('{"model": {"vocab": [3]}}')
    assert "is not a tokenizer with a vocabulary" in refusal(folder, with_tokens)


def test_without_tokenizers_the_vocabularies_must_be_of_one_size(served: ServedParts, tmp_path: Path):
    folder = write_model(tmp_path / "draft", seed=4)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 100}))
    assert "field vocab_size 100: the served model has 131 tokens" in refusal(folder, served)


def test_missing_tensors_and_no_model(served: ServedParts, tmp_path: Path):
    folder = write_model(tmp_path / "draft", seed=4)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    assert "tensor model.layers.2." in refusal(folder, served)
    assert "no such model folder" in refusal(tmp_path / "nowhere", served)


def test_what_is_too_large_for_memory(served: ServedParts, tmp_path: Path):
    folder = write_model(tmp_path / "draft", seed=4)
    with Checkpoint(folder) as checkpoint:
        weights = checkpoint.decoded_bytes(4)
    message = refusal(folder, served, weights - 1)
    assert f"its weights take {weights} bytes, and {weights - 1} bytes of memory are free" in message
    assert f"up to {(weights - 1) // 4} parameters fits" in message
    message = refusal(folder, served, weights + 20 * 16384)
    assert "KV of 33 blocks of 16384 bytes is needed for drafts" in message
    assert "a context of 1216 tokens fits" in message


# ---------------------------------------------------------------- heads


def without(name: str) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda tensors: tensors.pop(name)


def with_tensor(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda tensors: tensors.update({name: make(tensors[name])})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("fc.weight"), "tensor fc.weight is missing"),
        (without("midlayer.hidden_norm.weight"), "tensor midlayer.hidden_norm.weight is missing"),
        (without("d2t"), "tensor d2t is missing: the head drafts 60 tokens, the served model has 131"),
        (with_tensor("d2t", lambda d2t: d2t + 70), "tensor d2t leads to token"),
        (with_tensor("d2t", lambda d2t: d2t.float()), "tensor d2t is torch.float32, and must be integers"),
        (with_tensor("d2t", lambda d2t: d2t[:59].clone()), "tensor d2t has shape [59]"),
        (with_tensor("t2d", lambda t2d: ~t2d), "tensor t2d does not name the 60 tokens"),
        (with_tensor("fc.weight", lambda fc: fc[:, :96].clone()), "tensor fc.weight has shape [48, 96]"),
        (
            with_tensor("midlayer.self_attn.q_proj.weight", lambda q: q[:, :48].clone()),
            "tensor midlayer.self_attn.q_proj.weight has shape [48, 48], the configuration says [48, 96]",
        ),
    ],
)
def test_tensors_of_a_head(
    served: ServedParts, tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], object], message: str
):
    tensors = eagle3_tensors()
    change(tensors)
    assert message in refusal(write_head(tmp_path / "head", tensors), served)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocab_size": 130}, "field vocab_size 130: the served model has 131 tokens"),
        ({"num_hidden_layers": 2}, "an EAGLE-3 head has 1 layer"),
        ({"target_hidden_size": 64}, "field target_hidden_size 64: the served model's hidden_size is 48"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2]}, "a head reads 3"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 5]}}, "the served model's layers are 0 to 5"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "field eagle_config.use_aux_hidden_state False"),
    ],
)
def test_the_configuration_of_a_head(served: ServedParts, tmp_path: Path, fields: dict[str, Any], message: str):
    assert message in refusal(write_head(tmp_path / "head", **fields), served)


def test_which_layers_a_head_reads(served: ServedParts, tmp_path: Path):
    """On its own, the field numbers what the states go into; inside `eagle_config` what they come out of."""
    fields: list[dict[str, Any]] = [
        {},
        {"eagle_aux_hidden_state_layer_ids": [1, 4, 5]},
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 3, 4]}},
    ]
    layers = []
    for at, own in enumerate(fields):
        load_drafter(write_head(tmp_path / str(at), **own), served, ROOMY)
        layers.append(tuple(served.runner.state_layers))
    assert layers == [(2, 3, 3), (1, 4, 5), (1, 4, 5)]


def test_only_safetensors_are_read(served: ServedParts, tmp_path: Path):
    folder = write_head(tmp_path / "head")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "has no .safetensors file" in refusal(folder, served)


def test_a_model_without_a_layer_for_several_tokens(served: ServedParts):
    message = refusal(served.folder, served)
    assert "model_type 'llama' has no head for multi-token prediction that is supported (deepseek_v3 have)" in message


# ---------------------------------------------------------------- the replica


def options(model: Path, data: Path, draft: Path | None) -> ReplicaOptions:
    return ReplicaOptions(
        model=model,
        address="unix:none",
        data=data,
        name="replica",
        link_key=b"k",
        speculation=parse_speculation("auto", draft_model=draft is not None),
        draft_model=draft,
        kv_memory=8 << 20,
    )


def test_a_replica_says_the_same_of_itself_with_a_drafter(target: Path, tmp_path: Path):
    """Digest, layout and capacity are the served model's: so gateways, tiers and leases notice nothing."""
    draft = write_model(tmp_path / "draft", seed=4, num_hidden_layers=1)
    plain, drafting = (assemble(options(target, tmp_path / "data", folder)) for folder in (None, draft))
    assert [drafter.name for drafter in drafting.engine.speculator.drafters][-1] == "draft-model"
    assert (plain.model, plain.layout, plain.capacity) == (drafting.model, drafting.layout, drafting.capacity)
    for assembled in (plain, drafting):
        assembled.engine.close(1.0)


def test_a_draft_model_must_be_named_to_be_used():
    with pytest.raises(ValueError, match="draft-model needs the setting draft_model"):
        parse_speculation("ngram,draft-model")
    assert "draft-model" not in parse_speculation("auto")
    assert parse_speculation("draft-model", draft_model=True) == ["draft-model"]
