"""Every family against transformers (fp32): logits within 1e-4 after each of 64 tokens, and the same tokens."""

from __future__ import annotations

import pytest
import torch

from engine.protocol import Sampling
from engine.sampling.row import SamplingRow
from engine.sampling.sampler import sample
from tests.engine.conftest import Families, generate, make_bench
from tests.engine.families import FAMILIES, VOCABULARY, by_transformers

PROMPT = [(7 * i * i + 3 * i) % VOCABULARY for i in range(150)]
OUTPUT = 64


def drawn(logits: torch.Tensor, sampling: Sampling, start: int) -> list[int]:
    """What the sampler draws from these logits at the positions from `start`."""
    return sample(logits, [SamplingRow(sampling, [0] * (start + index)) for index in range(len(logits))])


@pytest.mark.parametrize("name", FAMILIES)
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
