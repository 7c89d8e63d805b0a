"""Puts a replica together whose model a foreign engine computes: it is asked what it is, and its tokenizer compared."""

from __future__ import annotations

import hashlib
import json

import structlog
from tokenizers import Tokenizer

from engine.core.engine import EngineLimits
from engine.errors import ModelError, StartError
from engine.foreign.admission import OneProject
from engine.foreign.engine_client import EngineClient, EngineFacts, ForeignError
from engine.foreign.foreign_engine import ForeignEngine
from engine.foreign.llamacpp import LlamaCpp
from engine.foreign.sglang import SGLang
from engine.foreign.streams import Streams, wait_for_engine
from engine.foreign.vllm import Vllm
from engine.startup.assembly import AssembledEngine, served_name
from engine.startup.options import ForeignOptions, ReplicaOptions
from model_files.model_documents import is_document, read_document
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.model_digest import text_digest
from protocol.replicas import Capacity, Layout, ServedModel

logger = structlog.get_logger("engine.foreign.assembly")

MOST_RUNNING = 256
"""Choices at an engine that does not say how many it computes at once."""
PROBES = (
    "The quick brown fox jumps over the lazy dog.",
    "  def f(x):\n\treturn x ** 2  # naïve\n\n\n",
    "Größe, façade, ångström; 東京は雨です。 Привет, мир! مرحبا 🙂👩‍👩‍👧",
    "1234567890 3.14159 0x7f 1e-9 $1,000.00 10:45 2026-11-30",
    '{"name": "value", "list": [1, 2, 3], "nested": {"a": null}}',
    "don't won't it's we'll I'd you've THEY'RE",
    "https://example.com/a/b?c=d&e=%20#f <b>bold</b> &amp; \\frac{1}{2}",
    "a    b\t\tc \r\n d\u00a0e\u200bf",
)
"""Texts that tokenizers which differ cut in different ways."""


def assemble_foreign(options: ReplicaOptions) -> AssembledEngine[ForeignEngine]:
    """Wait for the engine, and make a replica of it. Raises ModelError or StartError."""
    foreign = options.foreign
    assert foreign is not None
    if foreign.caches and foreign.kind != "llamacpp":
        raise StartError(f"foreign_cache: {foreign.kind} keeps projects apart by itself")
    tokenizer = _tokenizer(options)
    vocabulary = max(tokenizer.get_vocab_size(with_added_tokens=True), _padded_vocabulary(options))
    streams = Streams(_client(foreign, tokenizer), foreign.url, vocabulary, options.stall_s, foreign.key or None)
    try:
        facts, theirs = wait_for_engine(streams, list(PROBES), foreign.wait_s)
    except ForeignError as error:
        streams.close(1.0)
        raise StartError(f"foreign_url: {error}") from error
    for text, ids in zip(PROBES, theirs, strict=True):
        ours = tokenizer.encode(text, add_special_tokens=False).ids
        if ours != ids:
            streams.close(1.0)
            raise StartError(
                f"foreign_url: {facts.name} has another tokenizer: {text!r} is {ids[:8]}…, not {ours[:8]}…"
            )
    streams.facts = facts
    context = min(options.context or facts.context_tokens, facts.context_tokens)
    running = min(options.max_running or MOST_RUNNING, facts.running or MOST_RUNNING)
    digest = _digest(options, facts)
    limits = EngineLimits(
        context,
        running,
        bounds=options.bounds,
        queue_timeouts=options.queue_timeouts,
        lane_weights=options.lane_weights,
        token_targets=options.token_targets,
    )
    name = options.served or served_name(options.model)
    logger.info("a foreign engine", engine=facts.name, context=context, running=running)
    return AssembledEngine(
        ForeignEngine(
            streams,
            vocabulary,
            limits,
            digest,
            project=OneProject(options.data / "foreign-project") if foreign.caches else None,
        ),
        ServedModel(name, digest, text_digest(options.model), foreign.kind, vocabulary),
        Layout(BLOCK_TOKENS, ()),
        Capacity((), context, running),
        iter(()),
        None,
        f"foreign={facts.name}".replace(" ", "_"),
        foreign.kind,
    )


def _client(foreign: ForeignOptions, tokenizer: Tokenizer) -> EngineClient:
    match foreign.kind:
        case "vllm":
            return Vllm()
        case "sglang":
            return SGLang()
        case "llamacpp":
            return LlamaCpp(lambda text: tokenizer.encode(text, add_special_tokens=False).ids, caches=foreign.caches)


def _tokenizer(options: ReplicaOptions) -> Tokenizer:
    if not is_document(options.model / "tokenizer.json"):
        raise ModelError(f"{options.model}: a replica of a foreign engine needs the model's tokenizer.json")
    try:
        text = read_document(options.model / "tokenizer.json").decode()
        json.loads(text)
        return Tokenizer.from_str(text)
    except Exception as error:  # the library raises Exception itself
        raise ModelError(f"{options.model}: its tokenizer cannot be read: {error}") from error


def _padded_vocabulary(options: ReplicaOptions) -> int:
    """`vocab_size` of the model's configuration, which may be larger than the tokenizer's; 0 if there is none."""
    if not is_document(options.model / "config.json"):
        return 0
    try:
        size = json.loads(read_document(options.model / "config.json")).get("vocab_size", 0)
    except (ValueError, AttributeError) as error:
        raise ModelError(f"{options.model}: its config.json cannot be read: {error}") from error
    return size if isinstance(size, int) else 0


def _digest(options: ReplicaOptions, facts: EngineFacts) -> str:
    """The model's digest: of an engine that computes elsewhere no weights are known, only what it says it serves."""
    parts = ("turnpike/foreign/v1", text_digest(options.model), facts.name)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
