"""Simulated worlds: nothing is broken in some of them, and a seed is the same world each time."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.disk import Disk
from simulation.mutants import MUTANTS

_SEEDS = int(os.environ.get("SIMULATION_SEEDS", "12"))
_AGAIN = 2


def _simulate(hash_seed: str, *arguments: str) -> list[str]:
    """What the command printed; it must have found nothing."""
    command = [sys.executable, "-m", "simulation", "--traces", *arguments]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_is_broken_and_a_seed_is_the_same_world_each_time() -> None:
    first = _simulate("1", "--seeds", str(_SEEDS))
    again = _simulate("2", "--seeds", str(_AGAIN))
    assert len(first) == _SEEDS + 1
    assert again[:_AGAIN] == first[:_AGAIN]


def test_there_are_twenty_mutants_and_each_can_be_planted_once() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == 20
    assert sum(bool(mutant.mended) for mutant in MUTANTS) == 10
    for mutant in MUTANTS:
        path = Path(*mutant.module.split(".")).with_suffix(".py")
        assert path.read_text().count(mutant.old) == 1, mutant.name


@pytest.mark.parametrize("seed", range(20))
def test_a_loss_of_power_keeps_what_was_synced_and_a_part_of_the_rest(tmp_path: Path, seed: int) -> None:
    disk = Disk(tmp_path, random.Random(seed))
    path = tmp_path / "a"
    file = disk.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    folder = disk.open(tmp_path, os.O_RDONLY)
    _write(disk, file, b"synced")
    disk.fsync(file)
    disk.fsync(folder)
    _write(disk, file, b" and not synced")
    disk.close(file)
    disk.close(folder)
    disk.lose_power(tmp_path)
    content = path.read_bytes()
    assert b"synced and not synced".startswith(content)
    assert content.startswith(b"synced")


def _write(disk: Disk, file: int, data: bytes) -> None:
    while data:
        data = data[disk.write(file, data) :]
