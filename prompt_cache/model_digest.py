"""Digests of a served model, in which all its block keys and leases are rooted.

`text_digest` covers how text becomes tokens (tokenizer and chat template). A gateway has these files and checks that
the replica uses the same. `model_digest` adds configuration, weights and the type of computation. The replica computes
it and sends it in `Hello`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from model_files.model_documents import gguf_files, is_document, read_document

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
_CHUNK = 1 << 20


def _file_digest(path: Path) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.digest()


def _digest(purpose: str, contents: list[tuple[str, bytes]], *facts: str) -> str:
    """`contents`: names, and the digests of what has them."""
    digest = hashlib.sha256(purpose.encode())
    for name, content in contents:
        digest.update(len(name.encode()).to_bytes(8, "big") + name.encode() + content)
    for fact in facts:
        digest.update(len(fact).to_bytes(8, "big") + fact.encode())
    return digest.hexdigest()


def _documents(folder: Path, *names: str) -> list[tuple[str, bytes]]:
    """Those of these documents that the model has."""
    paths = [folder / name for name in names if is_document(folder / name)]
    return [(path.name, hashlib.sha256(read_document(path)).digest()) for path in paths]


def _files(paths: list[Path]) -> list[tuple[str, bytes]]:
    return [(path.name, _file_digest(path)) for path in paths]


def template_files(folder: Path) -> dict[str, Path]:
    """The files with chat templates that the folder has, by the templates' names."""
    default = folder / "chat_template.jinja"
    others = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    return {**({"default": default} if default.is_file() else {}), **{path.stem: path for path in others}}


def _texts(folder: Path) -> list[tuple[str, bytes]]:
    return _documents(folder, *_TOKENIZER_FILES) + _files(list(template_files(folder).values()))


def text_digest(folder: Path) -> str:
    """Hex SHA-256 over the tokenizer and chat template that the model has."""
    return _digest("turnpike/text/v1", _texts(folder))


def model_digest(folder: Path, dtype: str) -> str:
    """Hex SHA-256 over the model's texts, configuration and weights, and the type of computation."""
    contents = _documents(folder, "config.json") + _texts(folder)
    contents += _files(sorted(folder.glob("*.safetensors")) or gguf_files(folder))
    return _digest("turnpike/model-digest/v1", contents, dtype)
