"""Engines whose attention is fast, on the CPU: the same tokens, prompts alone are shared, and what they say of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.attention_backends.backend import AttentionKind
from engine.attention_backends.torch_attention import TorchAttention
from engine.core.metrics import engine_metrics
from engine.errors import StartError
from engine.startup.assembly import AssembledEngine, assemble
from engine.startup.fast_attention import fast_attention, warm_up_fast
from engine.startup.options import ReplicaOptions
from tests.engine.conftest import Bench, Families, generate

PROMPT = [(7 * i * i + 3 * i) % 131 for i in range(200)]


def assembled(folder: Path, data: Path, **options: object) -> AssembledEngine:
    return assemble(
        ReplicaOptions(folder, "unix:x", data, "r", b"", device="cpu", kv_memory=1 << 21, **options)  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("name", ["llama 3", "gemma2", "gemma3", "gpt-oss", "mistral"])
def test_tokens_are_those_of_exact_attention(name: str, family_folders: Families, tmp_path: Path) -> None:
    """Windows, soft caps, sinks: prompts of several chunks, decodes beside them, a prefix that is read."""
    outputs, logits = [], []
    for attention in ("exact", "fast"):
        engine = assembled(
            family_folders(name), tmp_path / attention, attention=attention, max_running=4, token_budget=96
        ).engine
        bench = Bench(engine)
        runs = [
            bench.add(generate(str(number), [number, *PROMPT[: 60 + 60 * number]], 40, temperature=1.5, seed=number))
            for number in range(3)
        ]
        bench.finish()
        again = bench.one(generate("again", [2, *PROMPT[:180]], 4))
        assert bench.counts("again").read == 128
        outputs.append([run.tokens for run in (*runs, again)])
        logits.append(torch.stack(again.logits))
    assert outputs[0] == outputs[1]
    assert len(set(outputs[0][0])) > 20
    assert (logits[0] - logits[1]).abs().max() < 1e-4


def test_the_blocks_of_prompts_alone_are_shared(tiny_model: Path, tmp_path: Path) -> None:
    shared = {}
    for attention in ("exact", "fast"):
        bench = Bench(assembled(tiny_model, tmp_path / attention, attention=attention).engine)
        first = bench.one(generate("first", PROMPT, 100))
        bench.one(generate("again", [*PROMPT, *first.tokens], 4))
        shared[attention] = bench.counts("again").read
    assert shared == {"exact": 256, "fast": 192}


def test_blocks_of_one_way_are_not_found_by_the_other(tiny_model: Path, tmp_path: Path) -> None:
    """Neither by their keys, which are made of the digest, nor on a disk, by the numerics id."""
    exact, fast = (assembled(tiny_model, tmp_path / way, attention=way) for way in ("exact", "fast"))
    assert exact.model.digest != fast.model.digest
    assert "attention" not in exact.numerics
    assert f"attention=fast:torch-{torch.__version__}" in fast.numerics


def test_it_says_what_computes_attention_and_why_nothing_is_drafted(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = engine_metrics(assembled(tiny_model, tmp_path, attention="fast").engine)
    assert metrics["turnpike_engine_attention_torch"] == 1
    assert metrics["turnpike_engine_attention_cudnn"] == 0
    assert metrics["turnpike_engine_speculation_off_attention"] == 1
    assert metrics["turnpike_engine_publishes_blocks"] == 1
    assert "attention is fast" in caplog.text
    assert "flash-attention-4" in caplog.text
    assert "needs a GPU" in caplog.text


def test_it_is_refused_where_nothing_computes_the_attention(family_folders: Families, tmp_path: Path) -> None:
    with pytest.raises(
        StartError, match=r"attention: fast is not possible .*torch: keys and values are one latent vector"
    ):
        assembled(family_folders("deepseek v3"), tmp_path, attention="fast")


def test_what_a_library_makes_once_is_made_before_requests(tiny_model: Path, tmp_path: Path) -> None:
    made: list[int] = []

    class Making(TorchAttention):
        def warm_up(self, kind: AttentionKind, context: int) -> Iterator[None]:
            assert torch.is_inference_mode_enabled()
            for number in range(3):
                made.append(number)
                yield

    engine = assembled(tiny_model, tmp_path).engine
    runner = engine.executor.runner
    pieces = warm_up_fast(runner, fast_attention(runner, 512, [Making()]), 512)
    assert made == []
    for count, _ in enumerate(pieces, 1):
        assert len(made) == count
        assert not torch.is_inference_mode_enabled()
    assert made == [0, 1, 2]
