"""Every family against transformers: in fp32 logits within 1e-4 and the same tokens for 64 of them; in bf16 as near."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import ModelError
from engine.models.registry import read_config
from engine.sampling.request_state import SamplingState
from engine.sampling.sampler import sample
from protocol.requests import Sampling
from tests.engine.conftest import Families, generate, make_bench
from tests.engine.families import (
    FAMILIES,
    MULTIMODAL,
    VOCABULARY,
    by_transformers,
    in_hub_style,
    write_family,
    write_multimodal,
)
from tests.fast import only_fast, only_some

PROMPT = [(7 * i * i + 3 * i) % VOCABULARY for i in range(150)]
OUTPUT = 64


def drawn(logits: torch.Tensor, sampling: Sampling, start: int) -> list[int]:
    """What the sampler draws from these logits at the positions from `start`."""
    return sample(logits, [SamplingState(sampling, [0] * (start + index)) for index in range(len(logits))])


@pytest.mark.parametrize("name", only_fast("llama 3", "gemma3", "qwen3 moe", "gpt-oss", "deepseek v3", of=FAMILIES))
def test_same_logits_and_tokens_as_transformers(name: str, family_folders: Families):
    """Seeded, so that tied weights do not repeat one token for ever, from the very same random numbers."""
    folder = family_folders(name)
    run = make_bench(folder).one(generate("a", PROMPT, OUTPUT, temperature=1.5, seed=5))
    assert run.done is not None
    assert run.done.error is None
    logits = by_transformers(folder, PROMPT + run.tokens)[len(PROMPT) - 1 : -1]
    difference = (torch.stack(run.logits) - logits).abs().max().item()
    assert difference < 1e-4
    sampling = Sampling(OUTPUT, temperature=1.5, seed=5)
    assert run.tokens == drawn(logits, sampling, len(PROMPT))
    assert len(set(run.tokens)) >= 40, "a model that repeats itself would pass anything"


@pytest.mark.parametrize("name", only_fast("llama 3", "gemma3", "gpt-oss", "deepseek v3", of=FAMILIES))
def test_a_configuration_in_hub_style_is_the_same_model(name: str, family_folders: Families, tmp_path: Path):
    folder = family_folders(name)
    config = json.loads((folder / "config.json").read_text())
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(in_hub_style(config)))
    run, expected = (make_bench(each).one(generate("a", PROMPT, 1)) for each in (tmp_path, folder))
    assert torch.equal(run.logits[0], expected.logits[0])


def by_the_whole(folder: Path, tokens: list[int]) -> torch.Tensor:
    """The logits after each token, by the model of images and text without any image."""
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        return model(input_ids=torch.tensor([tokens])).logits[0]


@pytest.mark.parametrize("name", only_fast("qwen3_vl", of=MULTIMODAL))
def test_of_a_model_of_images_and_text_the_language_part_is_run(name: str, tmp_path: Path):
    folder = write_multimodal(tmp_path / "new", name)
    run = make_bench(folder).one(generate("a", PROMPT, OUTPUT, temperature=1.5, seed=5))
    logits = by_the_whole(folder, PROMPT + run.tokens)[len(PROMPT) - 1 : -1]
    assert (torch.stack(run.logits) - logits).abs().max().item() < 1e-4
    assert len(set(run.tokens)) >= 40


def test_a_language_part_in_hub_style_is_the_same_model(tmp_path: Path):
    folder = write_multimodal(tmp_path / "new")
    hub = tmp_path / "hub"
    hub.mkdir()
    for file in folder.iterdir():
        (hub / file.name).symlink_to(file)
    config = json.loads((folder / "config.json").read_text())
    text = in_hub_style({**config.pop("text_config"), "dtype": config.pop("dtype")})
    dtype = text.pop("torch_dtype")
    (hub / "config.json").unlink()
    (hub / "config.json").write_text(json.dumps({**config, "text_config": text, "torch_dtype": dtype}))
    again, run = (make_bench(each).one(generate("a", PROMPT, 1)) for each in (hub, folder))
    assert torch.equal(again.logits[0], run.logits[0])


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl", "mistral3"])
@pytest.mark.parametrize("inside", ["language_model.model.", "model.language_model.", "model."])
def test_a_language_part_is_found_by_any_of_its_names(name: str, inside: str, tmp_path: Path):
    """As versions of transformers and hubs have written them; Qwen2.5-VL's first files have its fields outside."""
    folder = write_multimodal(tmp_path / "new", name)
    expected = make_bench(folder).one(generate("a", PROMPT, 1))
    other = tmp_path / "other"
    other.mkdir()
    head = "language_model.lm_head." if inside.startswith("language_model") else "lm_head."
    tensors = {}
    for file in folder.glob("*.safetensors"):
        for stored, tensor in load_file(file).items():
            name_of = stored.replace("model.language_model.", "model.").replace("language_model.", "")
            if name_of.startswith(("model.layers.", "model.embed_tokens.", "model.norm.")):
                tensors[name_of.replace("model.", inside, 1)] = tensor
            elif name_of.startswith("lm_head."):
                tensors[name_of.replace("lm_head.", head)] = tensor
            else:
                tensors[f"visual.{name_of}"] = tensor
    save_file(tensors, other / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    if name == "qwen2_5_vl" and inside == "model.":
        text = config.pop("text_config")
        config = {**text, **config}
        rope = text["rope_parameters"]
        config |= {"rope_theta": rope["rope_theta"], "rope_parameters": None}
        config["rope_scaling"] = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    (other / "config.json").write_text(json.dumps(config))
    assert torch.equal(make_bench(other).one(generate("a", PROMPT, 1)).logits[0], expected.logits[0])


def test_kimi_k2_is_deepseek_v3(family_folders: Families, tmp_path: Path):
    folder = family_folders("deepseek v3")
    config = json.loads((folder / "config.json").read_text())
    for file in folder.glob("*.safetensors*"):
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "kimi_k2"}))
    run, expected = (make_bench(each).one(generate("a", PROMPT, 1)) for each in (tmp_path, folder))
    assert torch.equal(run.logits[0], expected.logits[0])


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("mixtral", {"num_experts_per_tok": 5}, "field num_experts_per_tok must be at most 4, is 5"),
        ("qwen3 moe", {"num_experts_per_tok": 7}, "field num_experts_per_tok must be at most 6, is 7"),
        ("gpt-oss", {"num_experts_per_tok": 7}, "field num_experts_per_tok must be at most 6, is 7"),
        ("deepseek v2", {"num_experts_per_tok": 9}, "field num_experts_per_tok must be at most 8, is 9"),
        (
            "deepseek v3",
            {"num_experts_per_tok": 5},
            r"field num_experts_per_tok must be at most 4 \(topk_group\), is 5",
        ),
        ("deepseek v3", {"qk_rope_head_dim": 7}, "qk_rope_head_dim 7 is odd"),
        ("qwen3 moe", {"mlp_only_layers": "x"}, "field mlp_only_layers must be a list of integers"),
        ("phi3 longrope", {"original_max_position_embeddings": 1}, "original_max_position_embeddings must be above 1"),
    ],
)
def test_what_only_some_families_have_is_named_where_it_is_wrong(
    name: str, changes: dict[str, Any], message: str, family_folders: Families, tmp_path: Path
):
    config = json.loads((family_folders(name) / "config.json").read_text())
    for file in family_folders(name).iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").unlink()
    for rope in (config, config["rope_parameters"]):  # wherever it stands
        rope |= {field: value for field, value in changes.items() if field in rope or rope is config}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=message):
        make_bench(tmp_path)


def test_a_share_of_a_head_may_be_an_odd_number_of_elements(tmp_path: Path):
    """Pairs are turned, so it is one more than the share says: as in transformers."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    folder = write_family("phi3", tmp_path / "model", hidden_size=40, rope_parameters=rope)
    run = make_bench(folder).one(generate("a", PROMPT, 8))
    logits = by_transformers(folder, PROMPT + run.tokens)[len(PROMPT) - 1 : -1]
    assert (torch.stack(run.logits) - logits).abs().max().item() < 1e-4


@pytest.mark.parametrize("stored", ["the same", "another", "only it"])
def test_tied_weights_under_either_name_and_a_head_that_differs(stored: str, family_folders: Families, tmp_path: Path):
    tensors = {
        name: tensor
        for file in sorted(family_folders("llama tied").glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }
    embedding = tensors["model.embed_tokens.weight"]
    tensors["lm_head.weight"] = embedding.flip(0).contiguous() if stored == "another" else embedding.clone()
    if stored == "only it":
        del tensors["model.embed_tokens.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((family_folders("llama tied") / "config.json").read_text())
    run = make_bench(tmp_path).one(generate("a", PROMPT, 8))
    logits = by_transformers(tmp_path, PROMPT + run.tokens)[len(PROMPT) - 1 : -1]
    assert (torch.stack(run.logits) - logits).abs().max().item() < 1e-4


def test_what_hubs_leave_out_of_a_language_part_is_what_it_was_made_with(tmp_path: Path):
    from transformers import Gemma3TextConfig

    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    whole = {"model_type": "gemma3", "torch_dtype": "bfloat16", "eos_token_id": [1, 106], "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps({**whole, "text_config": text}))
    read, made = read_config(tmp_path), Gemma3TextConfig(**text)
    assert (read.model_type, read.dtype, read.stop_tokens) == ("gemma3_text", "bfloat16", (1, 106))
    assert (read.heads, read.kv_heads, read.head_dim) == (8, 4, 256)
    assert (made.num_attention_heads, made.num_key_value_heads, made.head_dim) == (8, 4, 256)
    assert (read.vocabulary, read.context_tokens) == (made.vocab_size, made.max_position_embeddings)
    assert (read.rope.theta, read.norm_eps) == (1e6, made.rms_norm_eps)
    assert (read.tied_embeddings, read.activation) == (made.tie_word_embeddings, made.hidden_activation)


@pytest.mark.parametrize("name", ["gemma2", "gemma3"])
def test_norms_that_are_stored_less_one_keep_their_last_bits_in_bf16(name: str, family_folders: Families):
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm

    folder, stored = family_folders(name), "model.norm.weight"
    theirs = Gemma3RMSNorm(48)
    where = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"][stored]
    theirs.load_state_dict({"weight": load_file(folder / where)[stored]})
    x = torch.randn(64, 48, generator=torch.Generator().manual_seed(1)).bfloat16()
    model = make_bench(folder, dtype=torch.bfloat16).engine.executor.runner.model
    assert torch.equal(model.norm(x), theirs(x))


@pytest.mark.parametrize("name", ["deepseek v2", "deepseek v3"])
def test_experts_of_deepseek_are_chosen_in_fp32(name: str, family_folders: Families):
    mixture = make_bench(family_folders(name), dtype=torch.bfloat16).engine.executor.runner.model.layers[1].mlp
    route, scored = mixture.router, []

    def listen(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scored.append(logits)
        return route(logits)

    mixture.router = listen
    mixture(torch.randn(8, 48, generator=torch.Generator().manual_seed(1)).bfloat16())
    assert not torch.equal(scored[0], scored[0].bfloat16().float())


def test_phi_within_its_first_context_is_the_model_that_was_trained_for_it(family_folders: Families):
    """A replica that serves no more turns positions by the short factors, as transformers does up to there."""
    folder = family_folders("phi3 longrope")
    runs = {context: make_bench(folder, context=context).one(generate("a", PROMPT[:40], 24)) for context in (64, 65)}
    logits = by_transformers(folder, PROMPT[:40] + runs[64].tokens)[39:-1]
    assert (torch.stack(runs[64].logits) - logits).abs().max().item() < 1e-4
    assert (runs[65].logits[0] - logits[0]).abs().max().item() > 1e-2


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("llama", {"full": 2 * 2 * 2 * 12}),  # layers, keys and values, KV heads, elements
        ("gemma3", {"window": 1 * 2 * 2 * 16, "full": 1 * 2 * 2 * 16}),
        ("deepseek v3", {"latent": 2 * (16 + 8)}),  # a latent and a turned key, for all four heads
    ],
)
def test_a_token_takes_in_memory_what_its_layers_remember_of_it(
    name: str, numbers: dict[str, int], family_folders: Families
):
    runner = make_bench(family_folders(name), blocks=3).engine.executor.runner
    assert {memory.group.kind: memory.data.nbytes for memory in runner.memories} == {
        kind: 3 * 64 * 4 * count for kind, count in numbers.items()
    }


def far(logits: torch.Tensor, reference: torch.Tensor) -> float:
    """The relative error (2-norm) of the middle row: a router that decides otherwise spoils rows, in either library."""
    return float(((logits.float() - reference).norm(dim=-1) / reference.norm(dim=-1)).median())


@pytest.mark.parametrize("name", only_some("llama 3", of=FAMILIES, every=3))
def test_bf16_is_as_near_to_fp32_as_that_of_transformers(name: str, family_folders: Families):
    """Over several prompts: the rows after a token that went to another expert are spoiled as well."""
    folder = family_folders(name)
    ours, both = [], {torch.float32: [], torch.bfloat16: []}
    for shift in range(3):
        prompt = [(token + shift) % VOCABULARY for token in PROMPT]
        run = make_bench(folder, dtype=torch.bfloat16).one(generate("a", prompt, OUTPUT // 3))
        ours += run.logits
        for dtype, rows in both.items():
            rows.extend(by_transformers(folder, prompt + run.tokens, dtype)[len(prompt) - 1 : -1])
    reference, theirs = (torch.stack(rows) for rows in both.values())
    assert 1e-3 < far(torch.stack(ours), reference) <= 1.5 * far(theirs, reference)
