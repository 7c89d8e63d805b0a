"""Speed is no oracle: how many steps a request takes does not tell what another project's requests got.

`SPECULATION_SAMPLES`: prompts that the victim had sent, and as many new ones; 250 in `make test-long`.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from engine.options import TEXT_DRAFTERS
from engine.startup.speculation import make_drafters
from protocol.requests import Segment
from tests.engine.conftest import VOCABULARY, Bench, generate, make_bench
from turnpike.commands.audit.isolation_probe import ALPHA
from turnpike.commands.audit.ks_test import smaller

SAMPLES = int(os.environ.get("SPECULATION_SAMPLES", "20"))
PROMPT, OUTPUT = 20, 24


def steps_of(bench: Bench, prompt: list[int], scope: str) -> int:
    """In how many steps the output of this prompt was drawn."""
    id = str(len(bench.runs))
    run = bench.one(generate(id, prompt, OUTPUT, segments=(Segment(PROMPT, scope),)))
    assert run.done is not None
    assert run.done.timeline is not None
    assert run.done.counts.output == OUTPUT
    return run.done.timeline.decodes


def attack(model: Path, victim: str | None, attacker: str) -> tuple[list[int], list[int]]:
    """The attacker's steps for prompts that the victim had sent (None: nobody had), and for new ones."""
    bench, dice = make_bench(model, blocks=64, drafters=make_drafters(TEXT_DRAFTERS)), random.Random(7)
    shared, new = [], []
    for _ in range(SAMPLES):
        known, fresh = ([dice.randrange(VOCABULARY) for _ in range(PROMPT)] for _ in range(2))
        if victim is not None:
            steps_of(bench, known, victim)
        asked = [(shared, known), (new, fresh)]
        dice.shuffle(asked)
        for steps, prompt in asked:
            steps.append(steps_of(bench, prompt, attacker))
    return shared, new


@pytest.mark.slow
def test_the_steps_of_one_project_do_not_tell_what_another_got(tiny_model: Path) -> None:
    shared, new = attack(tiny_model, "other", "project")
    assert smaller(shared, new).p >= ALPHA
    assert (shared, new) == attack(tiny_model, None, "project"), "it is as if there were no victim"


@pytest.mark.slow
def test_the_steps_of_a_project_tell_what_it_got_itself(tiny_model: Path) -> None:
    """So the attack would be seen if it succeeded."""
    shared, new = attack(tiny_model, "project", "project")
    assert smaller(shared, new).p < ALPHA
