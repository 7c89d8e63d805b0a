"""What a real replica says of itself: the names in its beats, and the names of its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.metric_help import HELP
from tests.engine.conftest import write_model
from tests.engine.fake_gateway import Client, ReplicaProcess
from tests.engine.tiny_tokenizer import write_tokenizer
from tests.goldens import golden


@pytest.mark.slow
@pytest.mark.e2e
async def test_metrics_and_files_of_a_replica(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    write_tokenizer(model)
    replica = await ReplicaProcess.start(tmp_path, model)
    try:
        client = await Client.dial(replica.path)
        await client.until(lambda: bool(client.beats))
        beat = client.beats[-1]
        golden.check("replica_metrics", sorted(beat.metrics))
        assert beat.metrics.keys() <= HELP.keys(), "a figure without a help text"
        golden.check("replica_tiers", sorted({load.tier for load in beat.memory}))
        golden.check("replica_files", sorted(path.name for path in replica.data.iterdir()))
        await client.close()
    finally:
        await replica.kill()
