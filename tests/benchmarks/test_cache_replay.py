"""The replay of traces: known answers, shapes of files, and the shipped policy beside the others."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path

import pytest

from benchmarks.cache_policies import POLICIES
from benchmarks.cache_replay import main, replay
from benchmarks.cache_traces import Prompt, Trace, read_trace
from benchmarks.cache_traffic import GENERATORS, chat, scans


@pytest.fixture(scope="module")
def small_chat() -> Trace:
    return chat(5, requests=700)


def naive_lru(trace: Trace, blocks: int) -> float:
    """As everybody would write it."""
    cached: OrderedDict[int, None] = OrderedDict()
    found = 0
    for prompt in trace.prompts:
        hit = 0
        while hit < len(prompt.blocks) and prompt.blocks[hit] in cached:
            hit += 1
        found += hit
        for block in reversed(prompt.blocks):
            cached[block] = None
            cached.move_to_end(block)
        while len(cached) > blocks:
            cached.popitem(last=False)
    return found * trace.block / trace.tokens


def test_lru_is_what_everybody_knows(small_chat: Trace) -> None:
    for capacity in (100_000, 300_000, 1_000_000):
        assert replay(small_chat, "lru", capacity) == pytest.approx(naive_lru(small_chat, capacity // 512), abs=0.005)


@pytest.mark.parametrize("trace", [chat(5, 700), scans(5, 700)], ids=["chat", "scans"])
def test_nobody_beats_who_knows_the_future(trace: Trace) -> None:
    for capacity in (150_000, 600_000):
        shares = {policy: replay(trace, policy, capacity) for policy in POLICIES}
        assert max(shares, key=lambda policy: shares[policy]) == "belady", shares
        assert shares["turnpike"] > shares["lfu"]
        assert shares["turnpike"] > shares["lru"] - 0.02


def test_with_room_for_all_everybody_finds_the_same(small_chat: Trace) -> None:
    shares = {policy: replay(small_chat, policy, 100_000_000) for policy in POLICIES}
    assert len(set(shares.values())) == 1, shares


@pytest.mark.slow
@pytest.mark.parametrize("name", GENERATORS)
def test_generated_traces_are_prefix_closed_and_repeat(name: str) -> None:
    trace = GENERATORS[name](2)
    assert trace == GENERATORS[name](2)
    before: dict[int, int] = {}
    for prompt in trace.prompts:
        assert len(prompt.blocks) == prompt.tokens // trace.block
        for parent, block in zip((0, *prompt.blocks), prompt.blocks, strict=False):
            assert before.setdefault(block, parent) == parent


def test_the_command_writes_what_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, out = tmp_path / "trace.jsonl", tmp_path / "out.json"
    lines = [{"timestamp": n, "input_length": 40, "output_length": 1, "hash_ids": [1, 2, 10 + n % 2]} for n in range(6)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["cache_replay", "--trace", str(file), "--capacity-tokens", "320", "--json", str(out)]
    monkeypatch.setattr("sys.argv", words)
    assert main() == 0
    policies = json.loads(out.read_text())["policies"]
    assert policies.keys() == POLICIES.keys()
    # Blocks have 16 tokens, and the last of each prompt is partial: five of six requests find 32 of 40.
    assert policies["turnpike"]["hit_share"] == pytest.approx(5 * 32 / 240, abs=1e-5)


def test_the_command_says_how_far_below_the_best_each_policy_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {"chat": lambda seed: chat(seed, 300), "scans": lambda seed: scans(seed, 300)}
    monkeypatch.setattr("benchmarks.cache_traffic.GENERATORS", small)
    out = tmp_path / "out.json"
    words = ["--generated", "5", "6", "--capacity-tokens", "150000", "--capacity-tokens", "100000000"]
    words += ["--policies", "lru", "arc", "turnpike", "--json", str(out)]
    monkeypatch.setattr("sys.argv", ["cache_replay", *words])
    assert main() == 0
    runs = json.loads(out.read_text())["runs"]
    assert [run["trace"] for run in runs[::2]] == ["chat, 5", "scans, 5", "chat, 6", "scans, 6"]
    # With room for all there is nothing to regret, and those replays do not count.
    shares = [[100 * result["hit_share"] for result in run["policies"].values()] for run in runs[::2]]
    lines = capsys.readouterr().out.splitlines()
    for number, policy in enumerate(["lru", "arc", "turnpike"]):
        regret = [max(share) - share[number] for share in shares]
        family = max(regret[0] + regret[2], regret[1] + regret[3]) / 2
        expected = f"| {policy} | {sum(regret) / 4:.2f} | {family:.2f} | {max(regret):.2f} ("
        assert any(line.startswith(expected) and line.endswith("| 4 |") for line in lines), (expected, lines)


@pytest.mark.parametrize("text", ["", "{}\n", "[1]\n", '{"input_length": "x", "hash_ids": []}\n', "nonsense\n"])
def test_a_file_that_is_no_trace_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"trace\.jsonl"):
        read_trace(file)


@pytest.mark.parametrize("words", [["--trace", "nowhere.jsonl"], ["--generated", "1", "--capacity-tokens", "0"]])
def test_what_cannot_be_replayed_is_said(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["cache_replay", *words])
    with pytest.raises(SystemExit):
        main()
    assert words[-2 if words[-1] == "0" else -1] in capsys.readouterr().err


def test_a_prompt_larger_than_the_cache_is_cached_in_part() -> None:
    for policy in POLICIES:
        assert replay(Trace(16, [Prompt(0.0, 160, tuple(range(10)))] * 2), policy, 64) == pytest.approx(64 / 320)
