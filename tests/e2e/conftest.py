"""One running Turnpike for the end-to-end tests of a module, with its key."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from openai import OpenAI

from tests.e2e.processes import Process, Used, first_key, process, used, wait_settled
from tests.servers import free_port


class Running(msgspec.Struct):
    """A `turnpike serve` that is ready."""

    process: Process
    base: str
    key: str
    data: Path
    started: int
    """In seconds since the Unix epoch."""

    @property
    def env(self) -> dict[str, str]:
        return {"TURNPIKE_DATA_DIR": str(self.data)}

    def used(self) -> Used:
        """What all answers so far came to, once they are settled."""
        wait_settled(self.base)
        return used(self.env)

    def client(self, key: str | None = None) -> OpenAI:
        return OpenAI(base_url=self.base + "/v1", api_key=key or self.key, max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("serve")
    port, data, started = free_port(), folder / "data", int(time.time())
    with process(folder, "serve", "--port", str(port), "--data-dir", str(data)) as running:
        key = first_key(running)
        base = re.search(r"http://127\.0\.0\.1:\d+", running.output)
        assert base is not None
        yield Running(running, base.group(0), key, data, started)
        assert running.stop() == 0, running.errors
