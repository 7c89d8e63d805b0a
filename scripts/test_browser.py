"""Tries the web console: its parts alone, then in a real browser against a real gateway with a demonstration's data.

    python scripts/test_browser.py [WORDS OF VITEST]

It builds the console, installs Debian's Chromium where none is there and apt works, and runs the tests in `web/src`,
then `web/e2e`. Pictures, logs
and figures of the run are in web/e2e/results afterwards. PAGES=keys,invoice tries those pages alone; DEMONSTRATION
names a demonstration that is there already, RESULTS another folder for what is kept, so that two runs can be at once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from build_console import ROOT, WEB, CannotBuild, build, find_node

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def main() -> int:
    """Run the tests; 1 with the reason where they cannot run here."""
    if not _install_chromium():
        print("turnpike: Chromium is missing; install it, on Debian: apt-get install chromium", file=sys.stderr)
        return 1
    try:
        build()
        node, _ = find_node()
    except (CannotBuild, subprocess.CalledProcessError, OSError) as error:
        print(f"turnpike: the console cannot be built: {error}", file=sys.stderr)
        return 1
    vitest = WEB / "node_modules/vitest/vitest.mjs"
    environment = {**os.environ, "TURNPIKE": str(ROOT / ".venv/bin/turnpike")}
    for words in (["run"], ["run", "--config", "e2e/vitest.config.ts", *sys.argv[1:]]):
        command = [str(word) for word in (node, vitest, *words)]
        if status := subprocess.run(command, cwd=WEB, env=environment, check=False).returncode:
            return status
    return 0


def _install_chromium() -> bool:
    """Whether there is a Chromium, installed here if need be."""
    if os.environ.get("CHROMIUM") or any(map(shutil.which, _PROGRAMS)):
        return True
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    print("turnpike: installing Chromium", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
        subprocess.run(["apt-get", "-qq", *words], env=environment, check=False, stdout=subprocess.DEVNULL)
    return shutil.which("chromium") is not None


if __name__ == "__main__":
    sys.exit(main())
