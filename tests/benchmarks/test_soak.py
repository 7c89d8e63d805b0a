"""The soak: a run that fails ends."""

from __future__ import annotations

import multiprocessing

import pytest

from benchmarks.soak import Soak, soak


@pytest.mark.slow
async def test_a_run_that_fails_leaves_no_replica(monkeypatch: pytest.MonkeyPatch):
    async def fails(run: Soak) -> None:
        assert run.process.is_running()
        raise TimeoutError("silent")

    monkeypatch.setattr(Soak, "run", fails)
    before = multiprocessing.active_children()
    with pytest.raises(TimeoutError, match="silent"):
        await soak(1000, 0.0)
    left = [child for child in multiprocessing.active_children() if child not in before]
    for child in left:
        child.kill()  # type: ignore[attr-defined]
    assert left == []
