"""Debian's Prometheus and its promtool, as `python -m tests.servers --install` installs them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers import ServerMissing, free_port

ROOT = Path(__file__).resolve().parent.parent.parent
RULES = ROOT / "deploy" / "prometheus" / "turnpike.rules.yml"


def program(name: str) -> str:
    """Where it is. Raises ServerMissing."""
    found = shutil.which(name)
    if found is None:
        raise ServerMissing("Prometheus is not installed: apt-get install prometheus")
    return found


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run promtool."""
    return subprocess.run([program("promtool"), *arguments], capture_output=True, text=True, check=False, timeout=120)


class Prometheus:
    """A running server."""

    def __init__(self, base: str) -> None:
        self.base = base

    def query(self, expression: str) -> list[Any]:
        """What an expression is now: a list of series. Raises urllib.error.HTTPError for one that is wrong."""
        words = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self.base}/api/v1/query?{words}", timeout=10) as answer:
            return list(json.load(answer)["data"]["result"])


@contextmanager
def running_prometheus(folder: Path, target: str) -> Iterator[Prometheus]:
    """A server that scrapes `target` (HOST:PORT) each second, with our rules."""
    folder.mkdir(parents=True, exist_ok=True)
    config, port = folder / "prometheus.yml", free_port()
    config.write_text(
        f"global: {{scrape_interval: 1s}}\nrule_files: [{RULES}]\n"
        f"scrape_configs: [{{job_name: turnpike, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    words = [program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "log").open("w") as log:
        running = subprocess.Popen(
            [*words, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log, env={**os.environ}
        )
        try:
            server, end = Prometheus(f"http://127.0.0.1:{port}"), time.monotonic() + 30
            while True:
                try:
                    if server.query("up"):
                        break
                except OSError:
                    pass
                assert running.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < end, (folder / "log").read_text()
                time.sleep(0.1)
            yield server
        finally:
            running.terminate()
            running.wait(20)


if __name__ == "__main__":
    sys.exit(promtool("check", "rules", str(RULES)).returncode)
