"""The sampler: every mode by chi-square against float64, with a negative control; penalties against a plain reference;
independence of the batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampling.counter_random import philox, uniform
from engine.sampling.logit_shaping import shape_logits
from engine.sampling.request_state import SamplingState
from engine.sampling.sampler import sample
from protocol.requests import Sampling
from tests.fast import examples, only_fast

VOCABULARY = 64
DRAWS = 4000
LOGITS = torch.linspace(-2, 2, VOCABULARY).roll(17)
PROMPT = [0, 5, 5, 17, 60]
OUTPUT = [12, 12, 12, 3, 60]


def row(position: int = 0, prompt: Sequence[int] = (), output: Sequence[int] = (), **parameters: Any) -> SamplingState:
    made = SamplingState(Sampling(1, **parameters), prompt, output)
    made.position = position
    return made


def draws(count: int = DRAWS, **parameters: Any) -> list[int]:
    state = row(0, PROMPT, OUTPUT, **{"seed": 3, **parameters})
    rows = []
    for position in range(count):
        rows.append(copy(state))
        rows[-1].position = position
    return sample(LOGITS.repeat(count, 1), rows)


def plain_logits(logits: Sequence[float], prompt: Sequence[int], output: Sequence[int], how: Sampling) -> list[float]:
    """Bias and penalties by their definition, a token at a time, rounded to fp32 after each of the two."""
    values = list(logits)
    for token, bias in how.logit_bias.items():
        values[token] = float(np.float32(values[token] + bias))
    for token in {*prompt, *output}:
        over, drawn = how.repetition_penalty, output.count(token)
        value = values[token] / over if values[token] > 0 else values[token] * over
        value = value - drawn * how.frequency_penalty - (how.presence_penalty if drawn else 0.0)
        values[token] = float(np.float32(value))
    if len(output) < how.min_tokens:
        for token in how.stop_tokens:
            values[token] = -math.inf
    return values


def expected(**parameters: Any) -> torch.Tensor:
    """The distribution in float64, by the definition of each mode."""
    how = Sampling(1, **parameters)
    values = plain_logits(LOGITS.double().tolist(), PROMPT, OUTPUT, how)
    weights = torch.softmax(torch.tensor(values, dtype=torch.float64) / how.temperature, 0)
    kept = weights.argsort(descending=True).tolist()
    if how.top_k:
        kept = kept[: how.top_k]
    if how.top_p < 1:
        mass, total, few = sum(weights[token].item() for token in kept), 0.0, []
        for token in kept:
            few.append(token)
            total += weights[token].item() / mass
            if total >= how.top_p:
                break
        kept = few
    kept = [token for token in kept if weights[token] >= how.min_p * weights.max()]
    result = torch.zeros_like(weights)
    result[kept] = weights[kept]
    return result / result.sum()


def chi_square(tokens: list[int], probabilities: torch.Tensor) -> float:
    """The statistic's distance from its mean in standard deviations, by the normal approximation."""
    seen = torch.bincount(torch.tensor(tokens), minlength=VOCABULARY).double()
    possible = probabilities > 0
    if seen[~possible].sum() > 0:
        return math.inf
    mean = probabilities[possible] * len(tokens)
    freedom = int(possible.sum()) - 1
    statistic = ((seen[possible] - mean) ** 2 / mean).sum().item()
    return (statistic - freedom) / math.sqrt(2 * freedom)


MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "temperature": {"temperature": 0.6},
    "top-p": {"top_p": 0.5},
    "top-p, warm": {"temperature": 1.7, "top_p": 0.9},
    "top-p, nearly all": {"temperature": 0.8, "top_p": 0.99},
    "top-k": {"top_k": 7},
    "top-k beyond the vocabulary": {"top_k": 1000},
    "min-p": {"min_p": 0.2},
    "top-k, then top-p, then min-p": {"top_k": 30, "top_p": 0.8, "min_p": 0.25, "temperature": 1.4},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 0.8},
    "negative penalties": {"presence_penalty": -0.5, "frequency_penalty": -0.7},
    "repetition": {"repetition_penalty": 1.8},
    "bias": {"logit_bias": {3: 2.5, 40: -100.0, 17: 1.0}},
    "min tokens": {"min_tokens": 6, "stop_tokens": (16, 2)},
    "everything": {
        "temperature": 1.3, "top_k": 40, "top_p": 0.95, "min_p": 0.02, "presence_penalty": 0.4,
        "frequency_penalty": 0.3, "repetition_penalty": 1.2, "logit_bias": {1: 1.0, 16: -1.0}, "min_tokens": 9,
        "stop_tokens": (15,),
    },
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_draws_from_its_distribution(mode: str):
    assert abs(chi_square(draws(**MODES[mode]), expected(**MODES[mode]))) < 5


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "temperature": ({"temperature": 1.15}, {}),
    "top-k": ({"top_k": 7}, {"top_k": 6}),
    "top-k ignored": ({}, {"top_k": 50}),
    "top-p": ({"top_p": 0.5}, {"top_p": 0.45}),
    "min-p": ({"min_p": 0.2}, {"min_p": 0.25}),
    "presence": ({"presence_penalty": 1.5}, {"presence_penalty": 1.0}),
    "frequency": ({"frequency_penalty": 0.8}, {"presence_penalty": 0.8}),
    "repetition": ({"repetition_penalty": 1.8}, {"repetition_penalty": 1.3}),
    "bias": ({"logit_bias": {3: 2.5}}, {"logit_bias": {3: 2.2}}),
    "min tokens": ({"min_tokens": 5, "stop_tokens": (16,)}, {"min_tokens": 6, "stop_tokens": (16,)}),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", only_fast("bias", "presence", of=WRONG))
def test_a_sampler_that_is_a_little_wrong_would_be_seen(what: str):
    drawn, claimed = WRONG[what]
    tokens = draws(count=20000, **drawn)
    assert abs(chi_square(tokens, expected(**drawn))) < 5
    assert chi_square(tokens, expected(**claimed)) > 5


PENALTIES = st.floats(-2, 2, allow_nan=False)
TOKENS = st.lists(st.integers(0, VOCABULARY - 1), max_size=150)


@settings(max_examples=examples(60), deadline=None)
@given(
    prompt=TOKENS,
    before=TOKENS,
    after=TOKENS,
    presence=PENALTIES,
    frequency=PENALTIES,
    repetition=st.floats(0.2, 3),
    bias=st.dictionaries(st.integers(0, VOCABULARY - 1), st.floats(-100, 100), max_size=10),
    least=st.integers(0, 200),
)
def test_penalties_grow_with_the_output_as_a_plain_reference_says(
    prompt: list[int], before: list[int], after: list[int], presence: float, frequency: float, repetition: float,
    bias: dict[int, float], least: int,
):  # fmt: skip
    """`before` was drawn by a replica that died, `after` token by token here."""
    how = Sampling(
        1,
        presence_penalty=presence,
        frequency_penalty=frequency,
        repetition_penalty=repetition,
        logit_bias=bias,
        min_tokens=least,
        stop_tokens=(1, 2),
    )
    state = SamplingState(how, prompt, before)
    for token in after:
        state.accept_token(token)
    neighbour = row(0, [1, 2, 3], [4], presence_penalty=1.0)
    ours = shape_logits(torch.stack([LOGITS] * 2), [neighbour, state])[1]
    assert ours.tolist() == plain_logits(LOGITS.tolist(), prompt, before + after, how)
    assert state.position == len(prompt) + len(before) + len(after)


def test_a_tiny_nucleus_and_a_tiny_temperature_are_greedy():
    best = int(LOGITS.argmax())
    assert set(draws(50, top_p=1e-9)) == {best}
    assert set(draws(50, temperature=1e-6)) == {best}
    assert sample(LOGITS[None], [row(temperature=0.0)]) == [best]
    assert set(draws(50, top_k=1)) == {best}
    assert set(draws(50, min_p=1.0)) == {best}
    assert sample(LOGITS[None], [row(temperature=0.0, logit_bias={best: -100.0, 2: 50.0})]) == [2]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("penalty", [{"frequency_penalty": -1e308}, {"repetition_penalty": 1e-320}])
def test_no_penalty_makes_a_token_that_there_is_not(penalty: dict[str, float], temperature: float):
    """Infinite logits, two of them, have a difference that is no number."""
    seen = [3, 3, 4, 4]
    assert sample(LOGITS[None], [row(output=seen, temperature=temperature, **penalty)])[0] < len(LOGITS)


@pytest.mark.parametrize("heat", [0.0, 1e-300, 1.0, 2.0])
def test_parameters_at_the_ends_of_their_ranges_still_draw_a_token(heat: float):
    ends: list[dict[str, Any]] = [
        {"repetition_penalty": 5e-324},
        {"repetition_penalty": 1e308},
        {"repetition_penalty": 5e-324, "logit_bias": {5: 1e300, 17: -1e300}, "frequency_penalty": -2.0},
        {"frequency_penalty": -1e308, "presence_penalty": -1e308},
        {"frequency_penalty": 1e308, "presence_penalty": 1e308},
        {"top_p": 5e-324, "min_p": 5e-324},
        {"logit_bias": dict.fromkeys(range(VOCABULARY), -100.0), "top_k": VOCABULARY},
        {"min_tokens": 9, "stop_tokens": tuple(range(VOCABULARY - 1))},
    ]
    for how in ends:
        tokens = draws(50, temperature=heat, **how)
        assert 0 <= min(tokens) <= max(tokens) < VOCABULARY
    assert set(draws(50, temperature=heat, repetition_penalty=5e-324)) <= {*PROMPT, *OUTPUT}, (
        "they are as likely as can be"
    )


@pytest.mark.slow
def test_a_nucleus_wider_than_the_first_try():
    flat = torch.zeros(1, 1024)
    seen = {sample(flat, [row(position, top_p=0.9, seed=1)])[0] for position in range(300)}
    assert max(seen) > 900  # equal tokens all belong to the nucleus
    slope = torch.linspace(0, 1, 1024)[None]
    tokens = [sample(slope, [row(position, top_p=0.5, seed=1)])[0] for position in range(300)]
    weights = torch.softmax(slope[0].double(), 0).flip(0)
    kept = int((weights.cumsum(0) < 0.5).sum()) + 1
    assert min(tokens) >= 1024 - kept


def test_padding_is_never_drawn():
    logits = torch.full((8, 128), 0.0)
    logits[:, 70:] = -torch.inf
    for position in range(100):
        rows = [row(position, temperature=5.0, seed=seed, top_k=seed * 20) for seed in range(8)]
        assert max(sample(logits, rows)) < 70


def test_rows_do_not_depend_on_the_batch():
    """Every mode beside every other, to the bit: alone, together, and the other way round."""
    chance = torch.Generator().manual_seed(1)
    modes = [{"temperature": 0.0}, *MODES.values(), {"temperature": 0.0, "frequency_penalty": 1.0}]
    how = [{**mode, "seed": at * 7919 + turn} for turn in range(4) for at, mode in enumerate(modes)]
    logits = torch.randn(len(how), 192, generator=chance) * 3
    rows = [row(3 * at, PROMPT, OUTPUT * (at % 3), **each) for at, each in enumerate(how)]
    together = sample(logits, rows)
    assert len(set(together)) > 20
    for at in range(len(how)):
        assert sample(logits[at : at + 1], rows[at : at + 1]) == together[at : at + 1]
    assert sample(logits.flip(0), rows[::-1])[::-1] == together


def test_philox_known_answers():
    """Philox 4x32-10 by a plain implementation in Python's integers."""

    def plain(seed: int, position: int) -> tuple[int, int]:
        mask = 0xFFFFFFFF
        counter = [position & mask, position >> 32 & mask, 0, 0]
        key = [seed & mask, seed >> 32 & mask]
        for _ in range(10):
            a, b = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
            counter = [(b >> 32) ^ counter[1] ^ key[0], b & mask, (a >> 32) ^ counter[3] ^ key[1], a & mask]
            key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
        return counter[0], counter[1]

    seeds = [0, 1, 0xFFFFFFFF, 2**63 - 1, 123456789012345]
    for seed in seeds:
        for position in (0, 1, 77, 2**31, 2**40):
            high, low = philox(torch.tensor([seed]), torch.tensor([position]))
            assert (int(high), int(low)) == plain(seed, position)
    # The reference's own vector for key 0, counter 0.
    assert plain(0, 0)[0] == 0x6627E8D5


def test_uniform_has_48_bits():
    """In float32 the largest numbers would be 1, and the token drawn by them behind the vocabulary."""
    seeds, positions = torch.arange(1000), torch.arange(1000) * 7
    numbers = uniform(seeds, positions)
    high, low = philox(seeds, positions)
    exact = [
        ((first << 16 | second >> 16) + 0.5) / 2**48 for first, second in zip(high.tolist(), low.tolist(), strict=True)
    ]
    assert numbers.dtype is torch.float64
    assert numbers.tolist() == exact


def test_uniform_is_inside_and_even():
    numbers = uniform(torch.full((20000,), 9), torch.arange(20000))
    assert float(numbers.min()) > 0
    assert float(numbers.max()) < 1
    assert abs(float(numbers.mean()) - 0.5) < 0.01
    counts = torch.histc(numbers, 20, 0, 1)
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 60
