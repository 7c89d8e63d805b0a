"""Loads what `--draft-model` names: a draft model, an EAGLE-3 head, or the served checkpoint's own layer for
multi-token prediction, which is named by the served model's folder.

What cannot draft for the served model is refused before the replica serves: a draft model with other tokens, with
tensors missing, or too large. The error says what would fit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
import torch

from engine.device import available_memory, return_freed_memory
from engine.errors import ModelError, StartError
from engine.execution.model_runner import ModelRunner
from engine.layers.linear import best_tiling
from engine.layers.loader import Loader
from engine.model_config.config import ModelConfig, check_sizes
from engine.model_config.fields import has_fields
from engine.models.eagle3 import Eagle3Head, is_eagle3, read_eagle3_config
from engine.models.mtp import MtpHead
from engine.models.registry import load_model, read_config
from engine.quantization.quantization_config import check_quantization
from engine.speculation.draft_model import DraftModel, SeparateModel
from engine.speculation.head_drafter import DraftingHead, Eagle3Drafter, HeadDrafter, MtpDrafter
from engine.speculation.side_drafter import SideDrafter
from engine.speculation.side_kv import SideKv
from engine.weights.checkpoint import Checkpoint
from model_files.model_documents import read_document
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.model_digest import model_digest
from protocol.replicas import LayerGroup

logger = structlog.get_logger("engine.startup.draft_checkpoint")

_KV_SHARE = 4
"""The drafter's KV takes at most one part in so many of what the served model's takes, or one context."""
_TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class ServedParts:
    """Of the served model what a drafter must fit: its folder, the runner, tokens of a context and of a step."""

    folder: Path
    config: ModelConfig
    runner: ModelRunner
    context: int
    budget: int
    digest: str

    @property
    def like(self) -> torch.Tensor:
        """Type and device."""
        return self.runner.model.embedding.weight

    @property
    def kv_bytes(self) -> int:
        """Bytes of its KV memory."""
        return sum(memory.data.nbytes for memory in self.runner.memories)


def load_drafter(folder: Path, served: ServedParts, free: int | None = None) -> SideDrafter:
    """The drafter of this folder. `free`: bytes of memory that nothing uses, None to ask the device.

    Raises ModelError or StartError that names what does not fit, and says what would.
    """
    if free is None:
        # The memory of KV on a CPU is taken as it is used.
        free = available_memory(served.like.device) - (served.kv_bytes if served.like.device.type == "cpu" else 0)
    if folder.resolve() == served.folder.resolve():
        return _mtp(served, free)
    if is_eagle3(folder):
        return _eagle3(folder, served, free)
    return _draft_model(folder, served, free)


def _draft_model(folder: Path, served: ServedParts, free: int) -> DraftModel:
    config = read_config(folder)
    check_tokens(folder, config.vocabulary, served.folder, served.config.vocabulary)
    free = memory_beside(folder, config, served.like, free)
    tiling = best_tiling(served.like)
    context = min(config.context_tokens, served.context)
    model = load_model(folder, config, served.like.new_empty(0), tiling, context)
    side = side_kv(_digest(folder, served), model.groups, served, free)
    separate = SeparateModel(model, served.like.new_empty(0), tiling, served.config.vocabulary)
    return DraftModel(separate, side, context)


def _eagle3(folder: Path, served: ServedParts, free: int) -> HeadDrafter:
    config = read_eagle3_config(folder)
    if config.vocabulary != served.config.vocabulary:
        raise ModelError(
            f"{config.fields.path}: field vocab_size {config.vocabulary}: the served model has"
            f" {served.config.vocabulary} tokens, and a head must be trained for it"
        )
    if has_fields(folder / _TOKENIZER):
        check_tokens(folder, config.vocabulary, served.folder, served.config.vocabulary)
    free = memory_beside(folder, config, served.like, free)
    with Checkpoint(folder) as checkpoint, torch.inference_mode():
        head = Eagle3Head(_loader(checkpoint, config, served), served.config, served.runner.model.embedding)
    return _attached(Eagle3Drafter, head, _digest(folder, served), served, free)


def _mtp(served: ServedParts, free: int) -> HeadDrafter:
    quantization = served.config.fields.inner("quantization_config")
    check_quantization(quantization)
    with Checkpoint(served.folder, quantization, served.config.prefix) as checkpoint, torch.inference_mode():
        head = MtpHead(_loader(checkpoint, served.config, served), served.runner.model)
    return _attached(MtpDrafter, head, f"mtp {served.digest}", served, free)


def _loader(checkpoint: Checkpoint, config: ModelConfig, served: ServedParts) -> Loader:
    like = served.like.new_empty(0)
    return Loader(checkpoint, config, like, best_tiling(like), served.context)


def _attached(kind: type[HeadDrafter], head: DraftingHead, digest: str, served: ServedParts, free: int) -> HeadDrafter:
    """The head's drafter, which reads the runner's hidden states."""
    if not served.runner.gives_states:
        raise StartError(
            f"draft_model: a head ({kind.name}) reads the served model's hidden states, which its kernels on this"
            " device do not hand back; a draft model with the same tokenizer needs none"
        )
    return_freed_memory()
    side = side_kv(digest, head.groups, served, free, tail=head.state_size, hole=1)
    drafter = kind(head, side, served.context, served.budget)
    drafter.read_from(served.runner)
    return drafter


def _digest(folder: Path, served: ServedParts) -> str:
    """What decides the drafter's KV: its files, the type of computation, and of which model's states it is made."""
    return f"{model_digest(folder, str(served.like.dtype))} {served.digest}"


def side_kv(
    digest: str, groups: Sequence[LayerGroup], served: ServedParts, free: int, *, tail: int = 0, hole: int = 0
) -> SideKv:
    """The drafter's KV memory: a part of the served model's, and as many blocks at most. Raises StartError."""
    block = sum(group.block_bytes for group in groups) + tail * served.like.itemsize
    least = -(-served.context // BLOCK_TOKENS) + 1
    most = max(memory.data.shape[0] for memory in served.runner.memories)
    blocks = min(max(least, min(most, served.kv_bytes // _KV_SHARE // block)), free // block)
    if blocks < least:
        raise StartError(
            f"draft_model: KV of {least} blocks of {block} bytes is needed for drafts, and {free} bytes of memory are"
            f" free beside the weights: a context of {max(0, blocks - 1) * BLOCK_TOKENS} tokens fits"
        )
    logger.info("memory for KV of drafts", blocks=blocks, tokens=blocks * BLOCK_TOKENS, bytes=blocks * block)
    return SideKv(digest, groups, blocks, served.like, tail=tail, hole=hole)


def memory_beside(folder: Path, config: ModelConfig, like: torch.Tensor, free: int) -> int:
    """Bytes that are left of `free` beside the folder's weights. Raises StartError if these are larger."""
    quantization = config.fields.inner("quantization_config")
    with Checkpoint(folder, quantization, config.prefix) as checkpoint:
        check_sizes(config, checkpoint.stored_bytes())
        needed = checkpoint.decoded_bytes(like.itemsize)
    if needed > free:
        raise StartError(
            f"draft_model: {folder}: its weights take {needed} bytes, and {max(0, free)} bytes of memory are free: a"
            f" draft model of up to {max(0, free) // like.itemsize} parameters fits"
        )
    return free - needed


# ---------------------------------------------------------------- tokens


def check_tokens(folder: Path, vocabulary: int, served: Path, served_vocabulary: int) -> None:
    """Raise ModelError unless a token id means the same in both folders.

    How many ids there are behind those of the tokenizer may differ: models pad their vocabularies.
    """
    fitting = f"a draft model needs the tokenizer of {served}"
    if not has_fields(served / _TOKENIZER) and not has_fields(folder / _TOKENIZER):
        if vocabulary != served_vocabulary:
            raise ModelError(
                f"{folder}: field vocab_size {vocabulary}: the served model has {served_vocabulary} tokens; {fitting}"
            )
        return
    ours, theirs = _tokens(folder), _tokens(served)
    for token in sorted(ours.keys() | theirs.keys()):
        if ours.get(token) != theirs.get(token):
            raise ModelError(
                f"{folder / _TOKENIZER}: token {token} is {ours.get(token)!r}, in the served model"
                f" {theirs.get(token)!r}; {fitting}"
            )
    if max(theirs, default=0) >= vocabulary:
        raise ModelError(
            f"{folder}: field vocab_size {vocabulary}: the tokenizer has ids up to {max(theirs)}; {fitting}, and"
            " weights for all its tokens"
        )


def _tokens(folder: Path) -> dict[int, str]:
    """The text of each token id of the folder's tokenizer. Raises ModelError."""
    path = folder / _TOKENIZER
    try:
        tokenizer = json.loads(read_document(path))
        pieces: Any = tokenizer["model"]["vocab"]
        # Unigram models list (text, score) in the order of ids.
        numbered = pieces.items() if isinstance(pieces, dict) else ((text, at) for at, (text, _) in enumerate(pieces))
        tokens = {int(token): str(text) for text, token in numbered}
        tokens |= {int(added["id"]): str(added["content"]) for added in tokenizer.get("added_tokens") or ()}
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{path}: is not a tokenizer with a vocabulary: {error!r}"[:300]) from error
    return tokens
