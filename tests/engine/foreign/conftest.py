"""The demo model at a real llama.cpp server, and replicas in front of foreign engines."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.engine.fake_gateway import Client, ReplicaProcess
from tests.servers import free_port

DEMO = Path(__file__).parents[3] / "models" / "stdlib-qa"


@dataclass
class LlamaServer:
    """A process of llama.cpp's server."""

    url: str
    process: subprocess.Popen[str]

    def busy(self) -> bool:
        """Whether a slot computes."""
        return any(slot["is_processing"] for slot in httpx.get(f"{self.url}/slots").json())


@pytest.fixture(scope="session")
def demo_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model as a GGUF file."""
    pytest.importorskip("xllamacpp")
    from tests.engine.gguf_files import write_gguf

    return write_gguf(DEMO, tmp_path_factory.mktemp("gguf") / "demo.gguf", "F32", tokenizer=DEMO)


def start_llama(gguf: Path) -> LlamaServer:
    """Start a server, and wait until it answers."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.engine.foreign.llama_server", str(gguf), str(port)],
        cwd=Path(__file__).parents[3],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    url = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return LlamaServer(url, process)
        except httpx.HTTPError:
            pass
        assert process.poll() is None, "llama.cpp's server ended"
        time.sleep(0.1)
    process.kill()
    raise AssertionError("llama.cpp's server does not come up")


@pytest.fixture(scope="session")
def llama(demo_gguf: Path) -> Iterator[LlamaServer]:
    """One for all tests that do not kill it."""
    server = start_llama(demo_gguf)
    yield server
    server.process.kill()
    server.process.wait()


@pytest_asyncio.fixture
async def connections() -> AsyncIterator[None]:
    """Hang up what a test dialed."""
    Client.dialed.clear()
    yield
    for client in Client.dialed:
        await client.close()


async def start_foreign(folder: Path, kind: str, url: str, **changes: object) -> ReplicaProcess:
    """A replica in front of an engine. `changes`: of ReplicaOptions, or of ForeignOptions."""
    from engine.startup.options import ForeignOptions

    own = {name: changes.pop(name) for name in ("caches", "wait_s", "key") if name in changes}
    options = ForeignOptions(kind, url, **{"wait_s": 5.0, **own})  # type: ignore[arg-type]
    return await ReplicaProcess.start(folder, DEMO, foreign=options, **changes)
