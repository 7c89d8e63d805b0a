"""The watchdog: a step that never ends is noticed, reported and survived (E3)."""

from __future__ import annotations

import asyncio
import faulthandler
import signal
import threading
from pathlib import Path

import pytest

from engine.server import watchdog
from engine.server.watchdog import EXIT_STALLED, Watchdog
from tests.engine.conftest import SCOPES, generate
from tests.engine.fake_gateway import Client, ReplicaProcess
from tests.fast import only_fast
from tests.waiting import LONG_S

POISON = 77
HARMLESS = [(5 * i) % 70 for i in range(90)]
HARMFUL = [*HARMLESS[:70], POISON, 3]

HANG = f"""
import ctypes, time
from engine.execution.model_runner import ModelRunner
run = ModelRunner.run
def hanging(self, works):
    if any({POISON} in work.request.tokens for work in works):
        WAIT
    return run(self, works)
ModelRunner.run = hanging
"""
SLEEP = HANG.replace("WAIT", "time.sleep(1000)")
HOLD_THE_LOCK = HANG.replace("WAIT", "ctypes.PyDLL(None).sleep(1000)")


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("fault", [SLEEP, HOLD_THE_LOCK], ids=["sleeps", "holds the interpreter's lock"])
async def test_a_step_that_never_ends_ends_the_replica(tmp_path: Path, tiny_model: Path, fault: str):
    replica = await ReplicaProcess.start(tmp_path, tiny_model, fault=fault, stall_s=1.0)
    client = await Client.dial(replica.path)
    client.send(*SCOPES.values(), generate("long", HARMLESS, 1500))
    await client.until(lambda: len(client.tokens.get("long", ())) > 5)
    client.send(generate("harmful", HARMFUL, 5))
    output = await replica.output()
    assert replica.status == (EXIT_STALLED if fault is SLEEP else 1)
    assert "in hanging" in output, "the stack says where it stands"
    await client.close()
    if fault is SLEEP:
        [report] = replica.data.glob("stall-*.txt")
        assert "harmful" in report.read_text()
        assert "in hanging" in report.read_text()
    second = await ReplicaProcess.start(tmp_path, tiny_model, fault=fault, stall_s=1.0)
    heir = await Client.dial(second.path)
    await heir.finished("long")
    assert heir.done["long"].counts.output >= 5, "the journal says what had been done"
    heir.send(*SCOPES.values(), generate("after", HARMLESS, 5))
    await heir.finished("after")
    assert heir.done["after"].reason == "length"
    await heir.close()
    assert await second.stop() == 0


@pytest.mark.e2e
@pytest.mark.slow
async def test_an_idle_replica_and_a_busy_one_are_left_alone(tmp_path: Path, tiny_model: Path):
    replica = await ReplicaProcess.start(tmp_path, tiny_model, stall_s=1.0)
    client = await Client.dial(replica.path)
    client.send(*SCOPES.values())
    await asyncio.sleep(3)
    client.send(generate("slow reader", HARMLESS, 50, credit=3))
    await asyncio.sleep(3)
    client.send(generate("after", HARMLESS, 5))
    await client.finished("after")
    await client.close()
    assert await replica.stop() == 0


@pytest.mark.e2e
@pytest.mark.slow
async def test_a_pause_of_the_whole_process_is_no_step_that_never_ends(tmp_path: Path, tiny_model: Path):
    replica = await ReplicaProcess.start(tmp_path, tiny_model, stall_s=0.2)
    client = await Client.dial(replica.path)
    client.send(*SCOPES.values(), generate("long", HARMLESS, 1500))
    await client.until(lambda: len(client.tokens.get("long", ())) > 5)
    replica.signal(signal.SIGSTOP)
    await asyncio.sleep(4)
    replica.signal(signal.SIGCONT)
    await client.finished("long")
    assert client.done["long"].reason == "length"
    await client.close()
    assert await replica.stop() == 0


def test_where_a_slow_step_stood_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(watchdog, "_LOOK_S", 0.01)
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda *_given, **_kept: None)
    looked, enough = 0, threading.Event()

    def stalled_for() -> float:
        nonlocal looked
        looked += 1
        if looked == 10:
            enough.set()
        return 5.0

    watching = Watchdog(
        tmp_path, stalled_for, lambda: LONG_S, lambda: "", lambda _: None,
        slow=lambda: 0.05, where=lambda: "in the journal", clock=lambda: 0.0,
    )  # fmt: skip
    watching.start()
    assert enough.wait(LONG_S)
    watching.stop()
    assert caplog.text.count("a step takes long") == 1
    assert "in the journal" in caplog.text


@pytest.mark.parametrize("broken", only_fast("_send", of=["_send", "reassign_orphans"]))
async def test_a_replica_that_can_no_longer_sync_or_beat_ends(tmp_path: Path, tiny_model: Path, broken: str):
    """… instead of being silent for ever, with its socket open."""
    fault = (
        "from engine.server.done_outbox import DoneOutbox\n"
        f"def broken(*given): raise LookupError('mute')\nDoneOutbox.{broken} = broken"
    )
    replica = await ReplicaProcess.start(tmp_path, tiny_model, fault=fault)
    try:
        client = await Client.dial(replica.path)
        client.send(*SCOPES.values(), generate("ends", HARMLESS, 2))
        assert await replica.ended() == 2
        assert "the engine failed: mute" in await replica.output()
        await client.close()
    finally:
        if replica.status is None:
            await replica.kill()
