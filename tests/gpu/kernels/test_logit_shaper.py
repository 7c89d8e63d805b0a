"""Changed logits on the device: the reference's tokens, whatever is counted when, alone and in company."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.execution.cuda.draws import Drawer, StepRows, compose, drawing_of
from engine.execution.cuda.seen_tokens import SeenTokens
from engine.kernels.likeliest import NOT_FINITE
from engine.kernels.uploads import Uploads
from engine.sampling.logit_shaping import LARGEST, shape_logits
from engine.sampling.request_state import SamplingState
from engine.sampling.sampler import sample
from protocol.requests import Sampling
from tests.fast import examples
from tests.gpu.kernels.interpreter import DEVICE, INTERPRETED

# Padding is minus infinity to the kernel that looks for the likeliest token.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

SMALL = 300


class Device:
    """Requests that decode on the device, with `rows` slots; each step computes some of them."""

    def __init__(self, rows: int, vocabulary: int) -> None:
        self.upload = Uploads(DEVICE)
        self.vocabulary = vocabulary
        self.drawer = Drawer(rows, vocabulary, DEVICE)
        self.seen = SeenTokens(rows, vocabulary, self.upload)
        self.latest = torch.zeros(rows, dtype=torch.int32, device=DEVICE)

    def step(
        self, logits: torch.Tensor, states: Sequence[SamplingState], slots: Sequence[int], ahead: int = 0
    ) -> list[int]:
        """The tokens of a step for these states; `ahead`: it comes so many steps behind what the states know."""
        rows = len(states)
        positions = np.array([state.position - 1 + ahead for state in states])
        places = np.array(slots, np.int32)
        drawings = [drawing_of(state.sampling, state) for state in states]
        changed = [at for at, state in enumerate(states) if state.changes_logits]
        parameters = np.stack([drawing.parameters for drawing in drawings])
        draws = compose(parameters, changed, [drawings[at] for at in changed], places[changed], self.upload)
        counted = np.zeros(rows, np.int32)
        if draws is not None:
            counting = draws.changed[draws.places >= 0]
            if ahead:
                assert self.seen.follows(places[counting], positions[counting])
            own = self.seen.follow(places[counting], positions[counting], [states[at] for at in counting])
            counted[counting] = own
        at, there, count = self.upload([positions.astype(np.int32), places, counted])
        inputs = self.latest.index_select(0, there)
        tokens = torch.full_like(at, -7)
        self.drawer.likeliest(logits, at, there, tokens, self.latest)
        if draws is not None:
            whither = StepRows(inputs, count, at, there, tokens, self.latest)
            self.drawer(logits, draws, self.seen.counts, whither)
        return tokens.tolist()

    def tell(self, slots: Sequence[int], tokens: Sequence[int]) -> None:
        self.latest[torch.tensor(slots, device=DEVICE)] = torch.tensor(tokens, dtype=torch.int32, device=DEVICE)


def expected(logits: torch.Tensor, states: Sequence[SamplingState], vocabulary: int) -> list[int]:
    return sample(logits[:, :vocabulary].float(), states)


def some_logits(rows: int, vocabulary: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    chance = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(rows, vocabulary + 64, generator=chance)
    logits[:, vocabulary:] = 99.0  # padding, never drawn
    return logits.to(dtype).to(DEVICE)


def some_sampling(chance: random.Random, vocabulary: int, *, limited: bool) -> Sampling:
    def token() -> int:
        return chance.randrange(vocabulary)

    changes: dict[str, Any] = {
        "presence_penalty": chance.choice([0.4, -1.0, 2.0]),
        "frequency_penalty": chance.choice([0.3, -0.7, 1.9]),
        "repetition_penalty": chance.choice([1.3, 0.7, 2.0, 5e-324, 1e308]),
        "logit_bias": {
            token(): chance.choice([2.5, -100.0, 0.0, 1e300, -1e300]) for _ in range(chance.randrange(1, 9))
        },
    }
    kept = {name: value for name, value in changes.items() if chance.random() < 0.5}
    stops = tuple(token() for _ in range(chance.randrange(4)))
    return Sampling(
        64,
        temperature=chance.choice([0.0, 0.0, 0.8, 1.0]),
        top_p=chance.choice([1.0, 0.9]) if limited else 1.0,
        top_k=chance.choice([0, 40]) if limited else 0,
        seed=chance.randrange(2**63),
        stop_tokens=stops,
        min_tokens=chance.choice([0, 2, 30]),
        **kept,
    )


def some_state(chance: random.Random, vocabulary: int, *, limited: bool = False) -> SamplingState:
    # Few tokens, so that they come again.
    few = [chance.randrange(vocabulary) for _ in range(20)]
    prompt, output = chance.choices(few, k=chance.randrange(1, 60)), chance.choices(few, k=chance.randrange(9))
    return SamplingState(some_sampling(chance, vocabulary, limited=limited), prompt, output)


@settings(max_examples=examples(8 if INTERPRETED else 60), deadline=None)
@given(seed=st.integers(0, 2**32), what=st.lists(st.sampled_from(["next", "ahead", "dropped", "left"]), max_size=5))
def test_the_reference_s_tokens_step_by_step(seed: int, what: list[str]) -> None:
    """Steps ahead of the host, kept or dropped and queued again; requests that leave their slots to others."""
    chance = random.Random(seed)
    states = [some_state(chance, SMALL) for _ in range(3)]
    slots = chance.sample(range(5), 3)
    device = Device(5, SMALL)
    device.tell(slots, [7, 7, 7])
    tokens = device.step(first := some_logits(3, SMALL, seed), states, slots)
    assert tokens == expected(first, states, SMALL)
    for index, event in enumerate(what):
        logits = some_logits(3, SMALL, seed + 1 + index)
        early = device.step(logits, states, slots, ahead=1) if event in ("ahead", "dropped") else None
        for state, token in zip(states, tokens, strict=True):
            state.accept_token(token)
        if event == "left":
            at = chance.randrange(3)
            states[at], slots[at] = some_state(chance, SMALL), next(slot for slot in range(5) if slot not in slots)
            device.seen.forget(np.array(slots[at : at + 1], np.int32))
        if event == "dropped" or early is None:
            device.tell(slots, tokens)
            early = device.step(logits, states, slots)
        tokens = early
        assert tokens == expected(logits, states, SMALL)
        for slot, state in zip(slots, states, strict=True):
            if state.counts is not None:
                counts = torch.full((SMALL,), -1, dtype=torch.int32)
                counts[state.counts.ids] = torch.from_numpy(state.counts.counts).int()
                assert torch.equal(device.seen.counts[slot].cpu(), counts)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_alone_and_in_company(dtype: torch.dtype) -> None:
    if INTERPRETED and dtype is torch.bfloat16:
        pytest.skip("the interpreter's casts of bf16 are wrong")
    vocabulary = 5_000 if INTERPRETED else 128_256
    chance = random.Random(7)
    rows = 9 if INTERPRETED else 200
    states = [some_state(chance, vocabulary, limited=True) for _ in range(rows)]
    logits = some_logits(rows, vocabulary, 3, dtype)
    together = Device(rows, vocabulary).step(logits, states, range(rows))
    assert together == expected(logits, states, vocabulary)
    for row in range(rows) if INTERPRETED else chance.sample(range(rows), 20):
        alone = Device(1, vocabulary).step(logits[row : row + 1], states[row : row + 1], [0])
        assert alone == [together[row]]


def test_the_bits_are_the_reference_s() -> None:
    """Every value of rows whose every token was seen, sampled, or has a bias: not only those that decide a token."""
    chance = np.random.default_rng(3)
    logits = some_logits(3, SMALL, 5)
    output = chance.integers(0, SMALL, 2_000).tolist()
    how: list[dict[str, Any]] = [
        {"repetition_penalty": 1.1, "frequency_penalty": 0.1, "presence_penalty": 0.3},
        {"logit_bias": dict(enumerate(chance.normal(size=SMALL).tolist())), "repetition_penalty": 0.3},
        {"logit_bias": {3: 1e300, 4: -1e300}, "frequency_penalty": -1e308, "min_tokens": 9_999, "stop_tokens": (3, 9)},
    ]
    states = [SamplingState(Sampling(1, temperature=0.0, **each), range(40), output) for each in how]
    device = Device(3, SMALL)
    device.step(logits, states, range(3))
    shaped = device.drawer.shaper.shaped[:3].cpu()
    values = shape_logits(logits[:, :SMALL].float().cpu(), states)
    assert torch.equal(shaped, values)
    assert float(shaped[2, 4]) == LARGEST
    assert shaped[2, [3, 9]].tolist() == [-torch.inf] * 2


def test_what_is_not_finite_and_what_is_padding() -> None:
    logits = some_logits(3, SMALL, 5)
    logits[1, 5] = torch.nan
    states = [SamplingState(Sampling(9, frequency_penalty=1.0, logit_bias={5: 1.0}), [1, 2]) for _ in range(3)]
    device = Device(3, SMALL)
    device.tell(range(3), [4, 4, 4])
    states[2].position = 0  # nothing is computed for this row
    tokens = device.step(logits, states, range(3))
    states[2].position = 2
    assert tokens[0] == expected(logits[:1], states[:1], SMALL)[0]
    assert tokens[1] == NOT_FINITE
    assert device.latest.tolist()[2] == 4
