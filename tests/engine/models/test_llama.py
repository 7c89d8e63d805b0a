"""Our Llama against transformers' (fp32): logits within 1e-4, the same tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import ModelError
from engine.layers.linear import Tiling
from engine.models.registry import load_model, read_config
from engine.startup.assembly import assemble
from engine.startup.options import ReplicaOptions
from tests.engine.conftest import VOCABULARY, Bench, generate, make_bench, write_model

PROMPT = [(7 * i * i + 3 * i) % VOCABULARY for i in range(150)]
ROPE_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES = {
    "grouped queries": {},
    "tied": {"tie_word_embeddings": True},
    "one KV head": {"num_key_value_heads": 1},
    "no groups": {"num_key_value_heads": 6},
    "llama3 rope": {"rope_scaling": ROPE_LLAMA3},
    "version 5 config": {
        "rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"},
        "rope_theta": None,
        "dtype": "float32",
        "torch_dtype": None,
    },
    "odd sizes": {"hidden_size": 36, "intermediate_size": 50, "head_dim": 6},
}


def greedy_by_transformers(
    folder: Path, prompt: list[int], count: int, dtype: torch.dtype = torch.float32
) -> tuple[list[int], torch.Tensor]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    given = torch.tensor([prompt])
    with torch.no_grad():
        out = model.generate(
            given, attention_mask=torch.ones_like(given), max_new_tokens=count, do_sample=False, eos_token_id=None
        )[0]
        logits = model(out[None]).logits[0]
    return out[len(prompt) :].tolist(), logits[len(prompt) - 1 : -1]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_same_logits_and_tokens_as_transformers(name: str, tmp_path: Path):
    folder = write_model(tmp_path / "model", seed=len(name), **CASES[name])
    run = make_bench(folder).one(generate("a", PROMPT, 64))
    tokens, logits = greedy_by_transformers(folder, PROMPT, 64)
    assert run.tokens == tokens
    assert (torch.stack(run.logits) - logits).abs().max() < 1e-4
    # A model that repeats one token for ever would pass anything.
    assert len(set(tokens)) >= 20


@pytest.mark.slow
def test_many_distinct_tokens_when_sampled(tiny_model: Path):
    run = make_bench(tiny_model).one(generate("a", PROMPT, 64, temperature=1.0, seed=5))
    assert len(set(run.tokens)) >= 40
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT + run.tokens])).logits[0][len(PROMPT) - 1 : -1]
    assert (torch.stack(run.logits) - logits).abs().max() < 1e-4


def test_bfloat16_checkpoint_is_run_in_float32(tiny_model: Path, tmp_path: Path):
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(tiny_model / "model.safetensors").items()}
    runs = []
    for dtype in (torch.bfloat16, torch.float32):
        folder = tmp_path / str(dtype)
        folder.mkdir()
        config = (tiny_model / "config.json").read_text()
        (folder / "config.json").write_text(config.replace("float32", str(dtype).removeprefix("torch.")))
        save_file({name: tensor.to(dtype) for name, tensor in tensors.items()}, folder / "model.safetensors")
        runs.append(make_bench(folder).one(generate("a", PROMPT, 16)))
    half, whole = runs
    assert half.tokens == whole.tokens
    assert torch.equal(torch.stack(half.logits), torch.stack(whole.logits))


@pytest.mark.slow
def test_in_bfloat16_it_is_as_close_as_transformers(tiny_model: Path, tmp_path: Path):
    options = ReplicaOptions(
        tiny_model, "unix:x", tmp_path, "r", b"", device="cpu", dtype="bfloat16", kv_memory=1 << 20
    )
    run = Bench(assemble(options).engine).one(generate("a", PROMPT, 1))
    _, exact = greedy_by_transformers(tiny_model, PROMPT, 1)
    _, theirs = greedy_by_transformers(tiny_model, PROMPT, 1, torch.bfloat16)
    assert (run.logits[0] - exact[0]).norm() < 1.5 * (theirs[0] - exact[0]).norm() < 0.2 * exact[0].norm()


def test_sharded_checkpoint_is_the_same_model(tiny_model: Path, tmp_path: Path):
    folder = tmp_path / "sharded"
    folder.mkdir()
    (folder / "config.json").write_text((tiny_model / "config.json").read_text())
    tensors = load_file(tiny_model / "model.safetensors")
    where = {name: f"part-{index % 3}.safetensors" for index, name in enumerate(sorted(tensors))}
    for file in set(where.values()):
        save_file({name: tensors[name] for name in where if where[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    expected = make_bench(tiny_model).one(generate("a", PROMPT, 16))
    run = make_bench(folder).one(generate("a", PROMPT, 16))
    assert run.tokens == expected.tokens
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {**where, "model.norm.weight": "part-1.safetensors"}}))
    for weights in ("auto", "decoded"):
        with pytest.raises(ModelError, match=r"part-1\.safetensors: tensor model\.norm\.weight cannot be read"):
            make_bench(folder, weights=weights)
    index.write_text(json.dumps({"weight_map": where}))
    (folder / "part-1.safetensors").unlink()
    with pytest.raises(ModelError, match=r"part-1\.safetensors: named in"):
        make_bench(folder)


def load(folder: Path) -> None:
    load_model(folder, read_config(folder), torch.zeros(()), Tiling(), 64)


def rewrite(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported"),
        ({"hidden_act": "relu2"}, "hidden_act 'relu2' is not supported"),
        ({"hidden_size": 0}, "field hidden_size must be a positive integer"),
        ({"hidden_size": "48"}, "field hidden_size must be a positive integer"),
        ({"num_attention_heads": True}, "field num_attention_heads must be"),
        ({"num_key_value_heads": 4}, "num_attention_heads 6 is not a multiple of num_key_value_heads 4"),
        ({"head_dim": 7}, "head_dim 7 is odd"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic' is not supported"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "field factor must be a positive number"),
        ({"rope_scaling": [1]}, "field rope_scaling must be an object"),
        (
            {"model_type": "mistral", "sliding_window": 8, "layer_types": ["full_attention"]},
            "field layer_types has 1 entries, num_hidden_layers is 2",
        ),
        (
            {"model_type": "mistral", "sliding_window": 8, "layer_types": ["full_attention", "linear_attention"]},
            "field layer_types: 'linear_attention' is not supported",
        ),
        ({"tie_word_embeddings": "no"}, "field tie_word_embeddings must be true or false"),
        ({"attention_bias": True}, r"tensor model\.layers\.0\.self_attn\.q_proj\.bias is missing"),
        ({"num_hidden_layers": 3}, r"tensor model\.layers\.2\.\S+ is missing"),
        ({"num_hidden_layers": 1}, r"no place for tensor model\.layers\.1\.input_layernorm\.weight"),
        ({"intermediate_size": 80}, r"gate_proj\.weight has shape \[72, 48\], the configuration says \[80, 48\]"),
        ({"vocab_size": 200}, r"embed_tokens\.weight has shape \[131, 48\]"),
        ({"vocab_size": 10**12}, "field vocab_size 1000000000000 asks for weights of"),
        ({"hidden_size": 10**9}, "field hidden_size 1000000000 asks for weights of"),
        ({"intermediate_size": 10**9}, "field intermediate_size 1000000000 asks for weights of"),
        ({"num_hidden_layers": 10**6}, "field num_hidden_layers 1000000 asks for weights of"),
        ({"num_attention_heads": 10**9, "num_key_value_heads": 1}, "field num_attention_heads 1000000000 asks for"),
        ({"head_dim": 10**9}, "field head_dim 1000000000 asks for weights of"),
        ({"kv_lora_rank": 10**9}, "field kv_lora_rank 1000000000 asks for weights of"),
        ({"max_position_embeddings": 10**12}, "field max_position_embeddings 1000000000000 is more than"),
        ({"max_position_embeddings": 10**30}, "field max_position_embeddings must be at most"),
        ({"rms_norm_eps": float("inf")}, "field rms_norm_eps must be a positive number up to"),
        ({"model_type": "mistral", "sliding_window": 10**30}, "field sliding_window must be an integer from 0 to"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}, "rope_theta": 1.0},
            "field rope_theta must be above 1 for yarn",
        ),
        ({"partial_rotary_factor": 1.5}, "field partial_rotary_factor must be at most 1, is 1.5"),
    ],
)
def test_a_wrong_configuration_is_named(changes: dict[str, object], message: str, tmp_path: Path):
    folder = write_model(tmp_path / "model")
    rewrite(folder, **changes)
    with pytest.raises(ModelError, match=message):
        load(folder)


def test_a_tensor_that_the_configuration_does_not_speak_of_is_named(tmp_path: Path):
    folder = write_model(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    bias = {"model.layers.1.self_attn.q_proj.bias": torch.zeros(48)}
    tables = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4), "lm_head.bias": torch.ones(131)}
    save_file({**tensors, **bias, **tables}, folder / "model.safetensors")
    load(folder)  # it changes nothing
    bias["model.layers.1.self_attn.q_proj.bias"][7] = 0.5
    save_file({**tensors, **bias}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"no place for tensor model\.layers\.1\.self_attn\.q_proj\.bias"):
        load(folder)
    save_file(tensors, folder / "model.safetensors")
    rewrite(folder, num_hidden_layers=1, num_nextn_predict_layers=1)
    load(folder)  # the layer behind the last one predicts several tokens at once


def test_of_several_files_the_one_that_is_the_model_is_read(tmp_path: Path):
    folder = write_model(tmp_path / "model")
    before = make_bench(folder).one(generate("a", PROMPT, 8)).logits
    tensors = load_file(folder / "model.safetensors")
    save_file({"model.norm.weight": torch.zeros(48), "extra": torch.ones(1)}, folder / "other.safetensors")
    assert torch.equal(make_bench(folder).one(generate("a", PROMPT, 8)).logits[0], before[0])
    assert "extra" not in tensors
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    with pytest.raises(ModelError, match=r"tensor model\.norm\.weight is in other\.safetensors as well"):
        load(folder)


def test_a_damaged_folder_is_named(tmp_path: Path):
    with pytest.raises(ModelError, match="nowhere: no such model folder"):
        read_config(tmp_path / "nowhere")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ModelError, match=r"config\.json: missing"):
        read_config(empty)
    folder = write_model(tmp_path / "model")
    whole = (folder / "model.safetensors").read_bytes()
    for damaged in (b"", whole[:5], whole[:1000], b"\xff" * 64):
        (folder / "model.safetensors").write_bytes(damaged)
        with pytest.raises(ModelError, match=r"model\.safetensors: is not a readable"):
            load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has no \.safetensors file"):
        load(folder)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "y" * 5000}}))
    with pytest.raises(ModelError, match="yyy: named in"):
        load(folder)
    for text in ("{", "[" * 100_000):
        (folder / "config.json").write_text(text)
        with pytest.raises(ModelError, match="is not JSON"):
            read_config(folder)
