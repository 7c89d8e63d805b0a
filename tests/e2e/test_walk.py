"""docs/walk.md, as it is written: from the first key to a paid invoice."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import ROOT, blocks
from tests.e2e.processes import bring_trials, process
from tests.servers import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
PAGE = (ROOT / "docs" / "walk.md").read_text()


def _shell(folder: Path, port: int, text: str) -> str:
    """Run a block of the page in a shell, as a reader would; what it printed. It stops at the first failure."""
    ours = f'turnpike() {{ "{sys.executable}" -m turnpike.cli "$@"; }}\nset -e -o pipefail\n'
    environment = {"TURNPIKE_DATA_DIR": str(folder / "data"), "TURNPIKE_PORT": str(port), "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        ["bash", "-c", ours + text.replace("127.0.0.1:8080", f"127.0.0.1:{port}")],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, f"{text}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


@pytest.mark.alone
@pytest.mark.timeout(900)
def test_the_walk_ends_with_a_paid_invoice(tmp_path: Path) -> None:
    sandbox, serve, walk, look, more = blocks(PAGE, "sh")
    assert serve == "turnpike serve\n"
    assert len(walk.splitlines()) == 10
    port = free_port()
    _shell(tmp_path, port, sandbox)
    bring_trials(tmp_path / "data")
    with process(tmp_path / "serve", "serve", "--data-dir", str(tmp_path / "data"), "--port", str(port)) as served:
        served.wait_for_output(r"curl ")
        walked = _shell(tmp_path, port, walk)
        assert "1 applied, 0 unapplied" in walked, walked
        seen = _shell(tmp_path, port, look)
        assert re.search(r"TEST-2040-000001 .* paid\b", seen), seen
        assert "11.90" in seen
        _shell(tmp_path, port, more)
        assert served.stop() == 0, served.errors
