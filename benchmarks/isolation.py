"""The isolation audit of a deployment of its own, tier by tier and after a restart: `python -m benchmarks.isolation`.

`turnpike serve` runs the demo model with so little device and host memory that a few prompts drive out others; then
`turnpike audit isolation` attacks prompts that lie in device memory, in host memory and on disk, each alone, and those
that come back after everything was stopped and started again. Its table and its exit code are this command's.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from benchmarks.startup_time import DEMO, Serve
from turnpike.commands.audit.isolation_places import TIERS

SAMPLES, WORDS = 250, 110
KV, DRAM = 16 << 20, 96 << 20
"""Device memory for 2,000 tokens, host memory for 12,000."""


class Restarting:
    """A deployment that a shell command restarts: it writes to one pipe, and reads from another until that is done."""

    def __init__(self, folder: Path) -> None:
        self._data = folder / "data"
        self._asked, self._done = folder / "restart", folder / "restarted"
        os.mkfifo(self._asked)
        os.mkfifo(self._done)
        self.command = f"echo now > {self._asked} && cat {self._done}"
        self.serve = self._start(None)
        threading.Thread(target=self._wait, daemon=True).start()

    def _start(self, port: int | None) -> Serve:
        memory = ["--kv-memory", str(KV), "--dram-memory", str(DRAM)]
        serve = Serve(DEMO, self._data, memory, port)
        serve.wait("/readyz")
        return serve

    def _wait(self) -> None:
        while True:
            self._asked.read_text()
            self.serve.stop()
            self.serve = self._start(self.serve.port)
            self._done.write_text("")


def main() -> int:
    """Start, attack, stop."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.isolation", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--samples", type=int, default=SAMPLES, help="of each kind, at each place")
    parser.add_argument("--words", type=int, default=WORDS, help="of a prompt")
    parser.add_argument("--tier", choices=TIERS, nargs="*", default=TIERS)
    parser.add_argument("--drafts", action="store_true", help="attack what is remembered of outputs, and no tier")
    parser.add_argument("--json", type=Path, help="write the report with all times")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="turnpike-isolation-") as folder:
        deployment = Restarting(Path(folder))
        try:
            command = [sys.executable, "-m", "turnpike.cli", "audit", "isolation", "--data-dir", f"{folder}/data"]
            command += ["--tenant", "demo", "--served-model", DEMO.name, "--url", deployment.serve.base]
            command += ["--samples", str(options.samples), "--words", str(options.words)]
            if options.drafts:
                command.append("--drafts")
            else:
                command += [word for tier in options.tier for word in ("--tier", tier)]
                command += ["--after", f"restart={deployment.command}"]
            command += ["--json", str(options.json)] if options.json else []
            return subprocess.run(command, check=False).returncode
        finally:
            deployment.serve.stop()


if __name__ == "__main__":
    sys.exit(main())
