"""Digests of a served model, in which all its block keys and leases are rooted.

`text_digest` covers how text becomes tokens (tokenizer and chat template). A gateway has these files and checks that
the replica uses the same. `model_digest` adds configuration, weights and the type of computation. The replica computes
it and sends it in `Hello`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_CHUNK = 1 << 20


def _file_digest(path: Path) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.digest()


def _folder_digest(purpose: str, files: list[Path], *facts: str) -> str:
    digest = hashlib.sha256(purpose.encode())
    for path in files:
        name = path.name.encode()
        digest.update(len(name).to_bytes(8, "big") + name + _file_digest(path))
    for fact in facts:
        digest.update(len(fact).to_bytes(8, "big") + fact.encode())
    return digest.hexdigest()


def text_digest(folder: Path) -> str:
    """Hex SHA-256 over the tokenizer and chat template files that the folder has."""
    return _folder_digest("turnpike/text/v1", [folder / name for name in TEXT_FILES if (folder / name).is_file()])


def model_digest(folder: Path, dtype: str) -> str:
    """Hex SHA-256 over the folder's text files, configuration and weights, and the type of computation."""
    files = [folder / name for name in ("config.json", *TEXT_FILES) if (folder / name).is_file()]
    return _folder_digest("turnpike/model-digest/v1", files + sorted(folder.glob("*.safetensors")), dtype)
