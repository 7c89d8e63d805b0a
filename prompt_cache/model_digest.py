"""Digests of a served model, in which all its block keys and leases are rooted.

`text_digest` covers how text becomes tokens (tokenizer and chat template). A gateway has these files and checks that
the replica uses the same. `model_digest` adds configuration, weights and the type of computation. The replica computes
it and sends it in `Hello`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
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


def template_files(folder: Path) -> dict[str, Path]:
    """The files with chat templates that the folder has, by the templates' names."""
    default = folder / "chat_template.jinja"
    others = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    return {**({"default": default} if default.is_file() else {}), **{path.stem: path for path in others}}


def _text_files(folder: Path) -> list[Path]:
    paths = [folder / name for name in _TOKENIZER_FILES if (folder / name).is_file()]
    return paths + list(template_files(folder).values())


def text_digest(folder: Path) -> str:
    """Hex SHA-256 over the tokenizer and chat template files that the folder has."""
    return _folder_digest("turnpike/text/v1", _text_files(folder))


def model_digest(folder: Path, dtype: str) -> str:
    """Hex SHA-256 over the folder's text files, configuration and weights, and the type of computation."""
    files = [path for path in (folder / "config.json",) if path.is_file()] + _text_files(folder)
    return _folder_digest("turnpike/model-digest/v1", files + sorted(folder.glob("*.safetensors")), dtype)
