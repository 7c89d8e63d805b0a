"""Environments of the clients: the newest releases, one each, beside the checkout's own.

python -m tests.clients.environments            # makes those that are missing, in .clients/
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(os.environ.get("TURNPIKE_CLIENTS", Path(__file__).resolve().parents[2] / ".clients"))
PYTHON_CLIENTS = {
    "openai": "openai",
    "anthropic": "anthropic",
    "openai-agents": "openai-agents",
    "langchain-openai": "langchain-openai",
    "langchain-anthropic": "langchain-anthropic",
    "litellm": "litellm mcp",  # it imports what it does not ask for, where a request has tools
    "instructor": "instructor",
    "pydantic-ai": "pydantic-ai-slim[openai,anthropic]",
}
"""Client → what is installed for it."""
NODE_CLIENTS = {
    "vercel": ("ai", "@ai-sdk/openai", "@ai-sdk/anthropic", "zod"),
    "codex": ("@openai/codex",),  # with a binary, for the systems that npm has one for
}


def interpreter(client: str) -> Path:
    """The Python of a client's environment."""
    return FOLDER / client / "bin" / "python"


def is_there(client: str) -> bool:
    """Whether the client's environment has been made."""
    return (FOLDER / client / "node_modules").is_dir() if client in NODE_CLIENTS else interpreter(client).exists()


def make(client: str) -> None:
    """Make the environment of a client. Raises subprocess.CalledProcessError."""
    folder = FOLDER / client
    folder.mkdir(parents=True, exist_ok=True)
    if client in NODE_CLIENTS:
        (folder / "package.json").write_text('{"private": true}\n')
        subprocess.run(["npm", "install", "--silent", "--no-audit", *NODE_CLIENTS[client]], cwd=folder, check=True)
        return
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(interpreter(client)), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, *PYTHON_CLIENTS[client].split()], check=True)


def main() -> None:
    """Make those that are missing; a client that cannot be installed is tested nowhere, and said to be."""
    failed = []
    for client in [*PYTHON_CLIENTS, *NODE_CLIENTS]:
        if is_there(client) or (client in NODE_CLIENTS and shutil.which("npm") is None):
            continue
        sys.stdout.write(f"installing {client}\n")
        try:
            make(client)
        except subprocess.CalledProcessError:
            shutil.rmtree(FOLDER / client, ignore_errors=True)
            failed.append(client)
    if failed:
        sys.stdout.write(f"cannot install, and therefore not tested: {', '.join(failed)}\n")


if __name__ == "__main__":
    main()
