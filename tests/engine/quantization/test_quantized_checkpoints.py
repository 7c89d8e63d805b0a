"""Whole checkpoints of few bits: the model that they hold, packed or decoded, and quantizing on load."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.device import should_keep_packed
from engine.errors import ModelError
from engine.layers import linear
from engine.layers.linear import PackedLinear
from engine.model_config.fields import Fields
from engine.options import Quantize, Weights
from engine.quantization import fp4
from engine.quantization.encoding import ENCODERS, quantized
from engine.quantization.measured_losses import KV_LOSSES, WEIGHT_LOSSES
from engine.quantization.packed import decoded
from engine.startup.assembly import assemble
from engine.startup.numerics import numerics_id
from engine.startup.options import ReplicaOptions
from engine.weights.checkpoint import Checkpoint
from tests.engine.conftest import generate, make_bench, write_model
from tests.engine.families import by_transformers, write_family
from tests.engine.quantization.stored_checkpoints import FORMATS, load, stored
from tests.fast import only_fast

PROMPT = [(7 * i * i + 3 * i) % 131 for i in range(150)]


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_quantized_checkpoint_is_the_model_that_it_holds(fmt: str, tmp_path: Path):
    folder, plain = stored(tmp_path, FORMATS[fmt], fmt)
    run = make_bench(folder).one(generate("a", PROMPT, 8))
    logits = by_transformers(plain, PROMPT + run.tokens)[len(PROMPT) - 1 : -1]
    assert (torch.stack(run.logits) - logits).abs().max() < 1e-4 * max(1.0, float(logits.abs().max()))
    assert run.tokens == logits.argmax(-1).tolist()


def assert_same_when_kept_packed(folder: Path, quantize: Quantize = "none") -> None:
    """Chunks, decodes alone and together, fp32 and bf16: the logits of weights that were decoded on loading."""
    for dtype in (torch.float32, torch.bfloat16):
        runs = []
        for weights in ("decoded", "packed"):
            bench = make_bench(folder, dtype=dtype, weights=weights, quantize=quantize, budget=100, running=8)
            kept = any(isinstance(one, PackedLinear) for one in bench.engine.executor.runner.tiling.products.values())
            assert kept == (weights == "packed")
            beside = [bench.add(generate(str(length), PROMPT[:length], 6)) for length in (3, 64, 90)]
            bench.finish()
            runs.append([*beside, bench.one(generate("a", PROMPT, 8, read=False))])
        for ours, theirs in zip(*runs, strict=True):
            assert ours.tokens == theirs.tokens
            assert torch.equal(torch.stack(ours.logits), torch.stack(theirs.logits))


@pytest.mark.slow
@pytest.mark.parametrize("fmt", only_fast("gptq", of=FORMATS))
def test_kept_packed_it_says_the_same(fmt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder, _ = stored(tmp_path, FORMATS[fmt], fmt)
    # Small tiles, so that these small weights have several: of 48 outputs where scales are for as many.
    monkeypatch.setattr(linear, "_TILE_OUTPUTS", 16)
    monkeypatch.setattr(linear, "_TILE_ELEMENTS", 16)
    assert_same_when_kept_packed(folder)


@pytest.mark.slow
@pytest.mark.parametrize("quantize", ENCODERS)
def test_kept_packed_when_quantized_on_load(quantize: Quantize, tmp_path: Path):
    folder = write_model(tmp_path / "model", hidden_size=128, intermediate_size=128, num_attention_heads=8, head_dim=16)
    assert_same_when_kept_packed(folder, quantize)


def test_what_fits_well_into_memory_is_decoded():
    ram = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cpu = torch.device("cpu")
    assert not should_keep_packed("auto", lambda: ram // 3, cpu)
    assert should_keep_packed("auto", lambda: ram, cpu)
    assert should_keep_packed("packed", lambda: 1, cpu)
    assert not should_keep_packed("decoded", lambda: ram * 2, cpu)


@pytest.mark.parametrize("fmt", FORMATS)
def test_what_decoding_would_take_is_known_beforehand(fmt: str, tmp_path: Path):
    folder, plain = stored(tmp_path, FORMATS[fmt], fmt)
    with Checkpoint(folder, Fields(folder, FORMATS[fmt])) as small, Checkpoint(plain) as large:
        assert 1 <= small.decoded_bytes(4) / large.decoded_bytes(4) < 1.1
        assert large.decoded_bytes(4) == sum(t.nbytes for t in load_file(plain / "model.safetensors").values())


def test_quantizing_on_load(tmp_path: Path):
    """The same as loading the weights that were quantized beforehand."""
    folder = write_model(tmp_path / "model", hidden_size=128, intermediate_size=128, num_attention_heads=8, head_dim=16)
    for quantize in ENCODERS:
        tensors = load_file(folder / "model.safetensors")
        before = {name: quantized(tensor, quantize) if "_proj" in name else tensor for name, tensor in tensors.items()}
        other = tmp_path / quantize
        other.mkdir()
        (other / "config.json").write_text((folder / "config.json").read_text())
        save_file(before, other / "model.safetensors")
        expected = make_bench(other).one(generate("a", PROMPT, 8))
        run = make_bench(folder, quantize=quantize).one(generate("a", PROMPT, 8))
        ours, theirs = torch.stack(run.logits), torch.stack(expected.logits)
        if quantize == "nvfp4":  # whose scales of outputs multiply sums
            assert (ours - theirs).abs().max() < 1e-4 * theirs.abs().max()
            continue
        assert run.tokens == expected.tokens
        assert torch.equal(ours, theirs)
    odd = write_model(tmp_path / "odd")
    with pytest.raises(ModelError, match=r"layers\.0\.self_attn\.q_proj cannot become mxfp4: 48 inputs"):
        load(odd, "mxfp4")


@pytest.mark.slow
def test_gpt_oss_in_mxfp4(tmp_path: Path):
    """Its experts as `_blocks` and `_scales`: the same as the plain model that holds their values."""

    plain = write_family("gpt-oss", tmp_path / "plain", hidden_size=64)
    files = sorted(plain.glob("*.safetensors"))
    tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
    packed = dict(tensors)
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts = packed.pop(name).transpose(1, 2).contiguous()
        encoded = [fp4.encode_mxfp4(expert) for expert in experts]
        packed[f"{name}_blocks"] = torch.stack([each.codes.view(len(each.codes), -1, 16) for each in encoded])
        packed[f"{name}_scales"] = torch.stack([each.scales for each in encoded])
        tensors[name] = torch.stack([decoded(each) for each in encoded]).transpose(1, 2).contiguous()
    for file in [*files, plain / "model.safetensors.index.json"]:
        file.unlink()
    save_file(tensors, plain / "model.safetensors", metadata={"format": "pt"})
    other = tmp_path / "packed"
    other.mkdir()
    config = json.loads((plain / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "mxfp4"}}))
    save_file(packed, other / "model.safetensors")
    run = make_bench(other).one(generate("a", PROMPT, 16))
    logits = by_transformers(plain, PROMPT + run.tokens)[len(PROMPT) - 1 : -1]
    assert (torch.stack(run.logits) - logits).abs().max() < 1e-4
    assert run.tokens == logits.argmax(-1).tolist()
    assert_same_when_kept_packed(other)
    for part in ("blocks", "scales"):
        name = f"model.layers.0.mlp.experts.down_proj_{part}"
        packed[name] = packed[name][:, :-1].contiguous()
    save_file(packed, other / "model.safetensors")
    for weights in ("decoded", "packed"):
        with pytest.raises(ModelError, match=r"experts\.\w+.* shape"):
            make_bench(other, weights=weights)


@pytest.mark.slow
def test_a_quantized_replica_is_another_model(tmp_path: Path):
    """Its KV is not that of the folder's own weights, so its keys must differ."""
    folder = write_model(tmp_path / "model", hidden_size=128, intermediate_size=128, num_attention_heads=8, head_dim=16)
    made = {
        quantize: assemble(
            ReplicaOptions(folder, "unix:x", tmp_path, "r", b"", device="cpu", kv_memory=1 << 22, quantize=quantize)
        )
        for quantize in ("none", *ENCODERS)
    }
    assert len({assembled.model.digest for assembled in made.values()}) == len(made) == 7


@pytest.mark.slow
def test_longrope_stretched_by_the_context_that_is_served_is_another_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """The start warns of it: its answers to short prompts are not those of transformers."""
    folder = write_family("phi3 longrope", tmp_path / "model")

    def digest(context: int) -> str:
        options = ReplicaOptions(folder, "unix:x", tmp_path, "r", b"", device="cpu", kv_memory=1 << 22, context=context)
        return assemble(options).model.digest

    original = digest(64)
    assert "longrope" not in caplog.text
    assert digest(65) != original
    assert "longrope turns positions by its long factors in prompts of any length" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["packed", "decoded"])
def test_a_replica_says_its_formats_and_their_loss_at_start(
    weights: Weights, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """And its numerics' name has them."""
    folder, _ = stored(tmp_path, FORMATS["awq"], "awq")
    plain = write_model(tmp_path / "model", hidden_size=64, intermediate_size=128, num_attention_heads=8)
    ids = set()
    for model, options in ((folder, {}), (plain, {"quantize": "nvfp4"}), (plain, {"kv_dtype": "fp8"}), (plain, {})):
        caplog.clear()
        assembled = assemble(
            ReplicaOptions(
                model, "unix:x", tmp_path, "r", b"", device="cpu", kv_memory=1 << 22, weights=weights, **options
            )
        )
        ids.add(numerics_id(assembled.engine.executor.runner, options.get("kv_dtype", "auto")))
        kept = "kept as they are" if weights == "packed" else "decoded to float32 when loaded"
        said = [line for line in caplog.text.splitlines() if "of few bits" in line]
        if not options and model == plain:
            assert not said
            continue
        assert len(said) == (2 if model == folder else 1)  # weights of 64 and of 128 inputs have two groups each
        wanted = ["KV of few bits", "fp8", f"{KV_LOSSES['fp8']:+.2f} %"]
        if model == folder:
            wanted = ["weights of few bits", "int4 g", kept, "bits per byte when rounded on loading"]
        elif "quantize" in options:
            wanted = ["weights of few bits", "nvfp4", kept, f"{WEIGHT_LOSSES['nvfp4']:+.2f} %"]
        assert all(part in line for part in wanted for line in said)
    assert len(ids) == 4
