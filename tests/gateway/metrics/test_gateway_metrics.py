"""Workers share metrics through files: a full disk must not kill the worker that counts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.small_disk import small_disk

SCRIPT = """
import sys
from gateway.metrics.gateway_metrics import GatewayMetrics

metrics = GatewayMetrics("gateway-0-0")
metrics.answered("tiny", 200)
print("made", flush=True)
sys.stdin.readline()
for status in range(200, 400):
    metrics.answered("a model whose name takes some room, so that pages are touched " * 2, status)
metrics.first_token("tiny", "standard", 0.1)
print("counted", flush=True)
"""


def test_a_worker_counts_on_while_the_disk_is_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", lambda: (), megabytes=2) as disk:
        folder = disk.folder / "metrics"
        folder.mkdir()
        counting = subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(folder)},
            cwd=Path(__file__).parents[3],
            text=True,
        )
        assert counting.stdin is not None
        assert counting.stdout is not None
        assert counting.stdout.readline() == "made\n"
        disk.fill()
        out, _ = counting.communicate("go\n", timeout=60)
        assert counting.returncode == 0, f"ended by signal {-counting.returncode}"
        assert out == "counted\n"
