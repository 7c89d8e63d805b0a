"""Greedy tokens of the fused kernels against those of transformers, in fp32: Llama, Qwen3, Mistral and the demo model.

On a GPU with heads of 64 and 128 and over several splits of keys; by Triton's interpreter a few tokens of tiny models.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import generate
from tests.engine.families import VOCABULARY, by_transformers, write_family
from tests.gpu.execution.fused_bench import fused_bench
from tests.gpu.kernels.interpreter import INTERPRETED

# Padding rows are computed from what happens to lie in memory.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

DEMO_MODEL = Path(__file__).resolve().parents[3] / "models" / "stdlib-qa"
PROMPT, OUTPUT = (66, 3) if INTERPRETED else (600, 48)
TINY = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 1}
SMALL = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2}
SIZES: dict[str, Any] = {**TINY, "num_hidden_layers": 1, "head_dim": 16} if INTERPRETED else SMALL
CONTEXT = {"max_position_embeddings": 2_048}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"head_dim": SIZES.get("head_dim", 128)},
    "qwen3": {"head_dim": SIZES.get("head_dim", 128)},
    "mistral": {"head_dim": SIZES.get("head_dim", 64), "sliding_window": 50},
}


def assert_greedy_as_transformers(folder: Path, prompt: list[int], output: int) -> list[int]:
    """Every token is the one that transformers finds the likeliest after what stands before it; returns the tokens."""
    context = -(-(len(prompt) + output) // 64) * 64 + 64
    bench = fused_bench(folder, context=context, blocks=context // 64 + 2)
    tokens = bench.one(generate("greedy", prompt, output)).tokens
    theirs = by_transformers(folder, prompt + tokens)[len(prompt) - 1 : -1]
    assert tokens == theirs.argmax(-1).tolist()
    return tokens


@pytest.mark.slow
@pytest.mark.parametrize("model_type", SHAPES)
def test_random_models(model_type: str, tmp_path: Path) -> None:
    folder = write_family(model_type, tmp_path / "model", **{**SIZES, **SHAPES[model_type], **CONTEXT})
    prompt = [(7 * i * i + 3 * i) % VOCABULARY for i in range(PROMPT)]
    tokens = assert_greedy_as_transformers(folder, prompt, OUTPUT)
    # A model that repeats one token for ever would pass anything.
    assert len(set(tokens)) >= max(2, OUTPUT // 5)


@pytest.mark.gpu  # the interpreter takes minutes
def test_the_demo_model() -> None:
    prompt = [4091, 4093, *((17 * i + 3) % 4000 for i in range(400)), 4095, 4094]
    assert_greedy_as_transformers(DEMO_MODEL, prompt, 32)
