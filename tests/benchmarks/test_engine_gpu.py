"""The benchmark of the engine on a GPU, as far as a CPU can tell: workloads, sampling, a run over the socket."""

from __future__ import annotations

import hashlib
import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.engine_gpu import parsed
from benchmarks.gpu.timed_requests import grammar, sampling
from benchmarks.gpu.workloads import NAMES, workloads

ROOT = Path(__file__).resolve().parents[2]
OTHERS_PROMPTS = "adf32608f2edb3743bc95250e438aaf6a5bed4e7c8d2dedcce17a0e26aadf49d"
"""SHA-256 of the prompts of seed 0 that vLLM was timed on."""


@pytest.mark.slow
def test_the_prompts_are_those_that_others_were_timed_on() -> None:
    made = workloads(0)
    del made["sharing_trees"]
    assert hashlib.sha256(json.dumps(made).encode()).hexdigest() == OTHERS_PROMPTS


def test_prompts_of_sharing_trees_leave_each_other_in_any_node() -> None:
    scale = 8
    root, middle, leaf = (tokens // scale for tokens in (2_048, 1_024, 512))

    def common(first: list[int], second: list[int]) -> int:
        pairs = zip(first, second, strict=False)
        return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))

    shared = set()
    for seed in range(4):
        prompts, _ = workloads(seed, scale)["sharing_trees"]
        shared |= {common(one, other) for one, other in itertools.combinations(prompts, 2)}
    ends = (root, root + middle, root + middle + leaf)
    assert {0, *ends} <= shared, "whole nodes of each level are shared"
    for low, high in zip((0, *ends), ends, strict=False):
        assert any(low < tokens < high for tokens in shared), "and parts of nodes of each level"


def test_an_eighth_is_sampled_with_penalties_in_every_group_of_prompts() -> None:
    drawn = [sampling(index, 512, 64, "eighth") for index in range(512)]
    sampled = [index for index, how in enumerate(drawn) if how.temperature]
    assert len(sampled) == 64
    assert {index % 32 for index in sampled} == set(range(32)), "of each prefix"
    assert all(drawn[index].presence_penalty and drawn[index].frequency_penalty for index in sampled)
    assert len({drawn[index].seed for index in sampled}) == 64
    assert not any(sampling(index, 7, 64, "eighth").temperature for index in range(7))


def test_an_eighth_has_a_grammar() -> None:
    guided = [index for index in range(512) if grammar(index, 512, "grammar")]
    assert guided == [index for index in range(512) if sampling(index, 512, 64, "grammar").temperature]
    assert len(guided) == 64
    assert not any(grammar(index, 512, "eighth") for index in range(512))


def test_none_and_all_can_be_sampled() -> None:
    assert not any(sampling(index, 32, 64, "none").temperature for index in range(32))
    plain = [sampling(index, 32, 64, "plain") for index in range(32)]
    assert {(how.temperature, how.top_p, how.presence_penalty) for how in plain} == {(1.0, 1.0, 0.0)}


def test_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--json", "OUT"]
    assert parsed(common).names == list(NAMES)
    assert parsed(common).sampling == "eighth"
    assert parsed([*common, "--greedy"]).sampling == "none"
    for wrong in (["--workloads", "nothing"], ["--profile", "batch32"], ["--scale", "0"], ["--setting", "swap=1"]):
        with pytest.raises(SystemExit):
            parsed([*common, *wrong])
        assert wrong[0] in capsys.readouterr().err


@pytest.mark.e2e
@pytest.mark.slow
def test_a_run_over_the_socket(tmp_path: Path) -> None:
    """A replica of a tiny model. What was sampled under a seed is the same when its prefix is cached."""
    out = tmp_path / "out.json"
    scale = ["--device", "cpu", "--shape", "qwen3-tiniest", "--scale", "16", "--repeats", "1", "--limit", "200"]
    command = [sys.executable, "-m", "benchmarks.engine_gpu", *scale, "--workloads", "sharing_trees", "--json", out]
    memory = ["--setting", "kv_memory=100000000"]  # no more than the context needs
    ended = subprocess.run(
        [*command, *memory], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    report = json.loads(out.read_text())
    assert (report["way"], report["sampling"], report["machine"]) == ("socket", "eighth", "cpu")
    assert 0 < report["ready_s"] < report["start_s"]
    (cold,), (warm,) = report["sharing_trees"], report["sharing_trees_warm"]
    for found in (cold, warm):
        assert not {"wrong", "stopped"} & set(found), found
        assert found["out_tok_s"] == pytest.approx(16 * 4 / found["s"])
        assert 0 < found["first_token_s"] < found["s"]
    assert warm["read_tok"] > cold["read_tok"]
    assert warm["same_as_cold"] == "16 of 16"
