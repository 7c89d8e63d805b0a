"""The documents that describe a model (`config.json`, `tokenizer.json`, …), by the paths that they have in a folder.

A folder of Hugging Face's has them as files. Those of a GGUF file are made from its metadata: `MODEL.gguf/config.json`
is a document, though no file has that path. So whoever reads a model's documents reads both kinds of models alike.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

from model_files.gguf_config import config_json, generation_json
from model_files.gguf_file import GgufModel, is_later_part, model_name
from model_files.gguf_tokenizer import tokenizer_config_json, tokenizer_json
from model_files.gguf_values import GgufError

_KEPT = 4
"""Models whose documents are kept in memory."""
_CONFIG = "config.json"
_guard = threading.Lock()
_kept: OrderedDict[tuple[str, int, int], Mapping[str, bytes]] = OrderedDict()


def gguf_of(model: Path) -> Path | None:
    """The GGUF file of a served model, which is that file, or a folder with one and no other weights; None for a folder
    of Hugging Face's. Raises GgufError for a folder with several."""
    if model.is_file():
        return model
    if (model / _CONFIG).is_file():
        return None
    found = [path for path in sorted(model.glob("*.gguf")) if not is_later_part(path)]
    if not found or next(model.glob("*.safetensors"), None) is not None:
        return None
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:5])
        raise GgufError(f"{model}: has {len(found)} GGUF files ({names}): give the path of one of them")
    return found[0]


def gguf_files(model: Path) -> list[Path]:
    """The GGUF files with the weights of a served model; none for a folder of Hugging Face's. Raises GgufError."""
    path = gguf_of(model)
    if path is None:
        return []
    with GgufModel(path) as opened:
        return opened.paths


def own_name(model: Path) -> str:
    """The name of a served model that is given none: that of its folder or file."""
    # A link's own name: where models are kept by their digests, what it leads to has no name.
    return model_name(model) if model.is_file() else model.resolve().name


def is_document(path: Path) -> bool:
    """Whether the model has the document. Raises GgufError for a GGUF file that cannot be used."""
    return _is_file(path) or path.name in _derived(path.parent)


def read_document(path: Path) -> bytes:
    """The document's bytes. Raises OSError if it is missing or cannot be read, GgufError for a GGUF file that cannot be
    used."""
    if not _is_file(path):
        document = _derived(path.parent).get(path.name)
        if document is not None:
            return document
    return path.read_bytes()


def written_at(model: Path) -> int:
    """When the model's configuration was written, in seconds since the Unix epoch. Raises OSError, GgufError."""
    return int((gguf_of(model) or model / _CONFIG).stat().st_mtime)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that no file can have
        return False


def _derived(model: Path) -> Mapping[str, bytes]:
    """The documents of a GGUF file by name; none for a folder of Hugging Face's."""
    path = gguf_of(model)
    if path is None:
        return {}
    try:
        status = path.stat()
    except OSError as error:
        raise GgufError(f"{path}: cannot be read: {error.strerror}") from error
    key = (str(path.absolute()), status.st_mtime_ns, status.st_size)
    with _guard:
        documents = _kept.pop(key, None)
        if documents is None:
            documents = _documents(path)
        _kept[key] = documents
        if len(_kept) > _KEPT:
            _kept.popitem(last=False)
    return documents


def _documents(path: Path) -> Mapping[str, bytes]:
    with GgufModel(path) as model:
        made = {
            _CONFIG: config_json(model),
            "generation_config.json": generation_json(model),
            "tokenizer.json": tokenizer_json(model),
            "tokenizer_config.json": tokenizer_config_json(model),
        }
    return {name: json.dumps(document).encode() for name, document in made.items()}
