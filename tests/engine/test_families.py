"""Every family against transformers: in fp32 logits within 1e-4 and the same tokens for 64 of them; in bf16 as near."""

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


def far(logits: torch.Tensor, reference: torch.Tensor) -> float:
    """The relative error (2-norm) of the middle row: a router that decides otherwise spoils rows, in either library."""
    return float(((logits.float() - reference).norm(dim=-1) / reference.norm(dim=-1)).median())


@pytest.mark.parametrize("name", FAMILIES)
def test_bf16_is_as_near_to_fp32_as_that_of_transformers(name: str, family_folders: Families):
    folder = family_folders(name)
    run = make_bench(folder, dtype=torch.bfloat16).one(generate("a", PROMPT, OUTPUT))
    reference, theirs = (
        by_transformers(folder, PROMPT + run.tokens, dtype)[len(PROMPT) - 1 : -1]
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert 1e-3 < far(torch.stack(run.logits), reference) <= 1.5 * far(theirs, reference)
