"""Compiles grammars with llguidance: JSON schema, regular expression, choice of texts, and Lark or GBNF grammars.

The library's own limits bound the cost of a grammar, so that a mask takes milliseconds at most (E6). The trial process
loads this module too, so it does not import torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llguidance
from llguidance.gbnf_to_lark import any_to_lark

from engine.grammar.closing_search import ClosingSearch
from engine.grammar.guide import InvalidGrammar
from engine.grammar.schema_keywords import PreparedSchema, prepare_schema
from model_files.model_documents import is_document, read_document
from protocol.grammar_limits import check_grammar, check_grammar_text

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_MAX_MESSAGE = 300
_WHITESPACE = r"(\n[ ]{0,32}|[ ])?"
"""White space in JSON: a space, or a line feed and indentation; bounded, so that it cannot use up the output."""
_ONE_SPELLING = 'nrbtf\\"'
"""Escapes without `\\u`: each text has one spelling then, so that no name that a schema lists comes in another one."""
_LIMITS = llguidance.LLParserLimits(
    step_max_items=10_000,
    step_lexer_fuel=100_000,
    max_lexer_states=50_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)
"""Parser items and lexer steps of one mask, states and symbols of one grammar. With these limits a mask took up to
20 ms on one core of 2026; with the library's defaults up to 460 ms."""
_VERSION = 3
"""Increase when this module may judge a grammar differently."""


class GrammarCompiler:
    """Compiles grammars over one model's own tokenizer, which is read when first needed."""

    def __init__(self, folder: Path, vocabulary: int, ends: Sequence[int]) -> None:
        """`folder`: the model's. `vocabulary`: its number of tokens. `ends`: its end tokens."""
        self.folder = folder
        self.vocabulary = vocabulary
        self.ends = [end for end in ends if 0 <= end < vocabulary]
        self._guard = threading.Lock()
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._closer: ClosingSearch | None = None
        self._identity: bytes | None = None

    def prepared(self, text: str) -> str:
        """The library's form of a `Generate.grammar` text. Raises InvalidGrammar."""
        with _refusing():
            return _library_form(text)

    def matcher(self, prepared: str) -> llguidance.LLMatcher:
        """A matcher at the beginning of a prepared grammar. Raises InvalidGrammar."""
        with _refusing():
            tokenizer, _ = self.vocabulary_of_model()
            matcher = llguidance.LLMatcher(tokenizer, prepared, log_level=0, limits=_LIMITS)
            if matcher.is_error():
                raise InvalidGrammar(first_line(matcher.get_error()))
            matcher.compute_bitmask()  # finds out whether nothing can follow
            if matcher.is_error() and _met_limit(matcher):
                raise InvalidGrammar(first_line(matcher.get_error()))
            if matcher.is_error() or (matcher.is_stopped() and not matcher.is_accepting()):
                raise InvalidGrammar("no text fulfils it")
            return matcher

    def vocabulary_of_model(self) -> tuple[llguidance.LLTokenizer, ClosingSearch]:
        """The library's form of the tokenizer, and the closing search over it. Raises InvalidGrammar."""
        with self._guard:
            if self._tokenizer is None or self._closer is None:
                path = self.folder / "tokenizer.json"
                try:
                    definition = read_document(path).decode()
                    tokenizer = _make_tokenizer(definition, self.vocabulary, self.ends)
                except (OSError, ValueError) as error:
                    raise InvalidGrammar(f"this model has no tokenizer that a grammar could use: {error}") from error
                self._closer = ClosingSearch(
                    (token, tokenizer.decode_bytes([token]))
                    for token in range(self.vocabulary)
                    if not tokenizer.is_special_token(token)
                )
                self._tokenizer = tokenizer
            return self._tokenizer, self._closer

    def digest(self, text: str) -> bytes:
        """The key of a verdict on this grammar: of its text, the tokenizer, and the versions that judge it."""
        if self._identity is None:
            path = self.folder / "tokenizer.json"
            identity = hashlib.blake2b(read_document(path) if is_document(path) else b"", digest_size=16)
            identity.update(repr((_VERSION, llguidance.get_version(), self.vocabulary, self.ends)).encode())
            self._identity = identity.digest()
        return hashlib.blake2b(text.encode(errors="surrogatepass"), key=self._identity, digest_size=16).digest()


def _make_tokenizer(definition: str, vocabulary: int, ends: list[int]) -> llguidance.LLTokenizer:
    """The library's form of a `tokenizer.json`. Older builds of the library take one end token: the first."""
    try:
        return llguidance.LLTokenizer(definition, n_vocab=vocabulary, eos_token=ends)
    except TypeError:
        return llguidance.LLTokenizer(definition, n_vocab=vocabulary, eos_token=ends[0] if ends else None)


def first_line(message: str) -> str:
    """The library's message without its description of internal state."""
    if message.startswith("NoExtensionBias"):
        return "no text fulfils it"
    return " ".join(re.split("<state>|<non-verbose/>", message)[0].split())[:_MAX_MESSAGE]


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Turn whatever the library raises into InvalidGrammar. Its panics are BaseExceptions."""
    try:
        yield
    except (InvalidGrammar, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise InvalidGrammar(first_line(str(error)) or type(error).__name__) from error


def _met_limit(matcher: llguidance.LLMatcher) -> bool:
    return re.search("limit|fuel|too many|max is", matcher.get_error(), re.IGNORECASE) is not None


def _library_form(text: str) -> str:
    check_grammar_text(text)
    try:
        ((kind, body),) = json.loads(text).items()
    except RecursionError as error:
        raise InvalidGrammar("it is nested too deep") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidGrammar(first_line(str(error))) from error
    check_grammar(kind, body)
    return _by_kind(kind, body)


def _json_options(prepared: PreparedSchema) -> JsonCompileOptions:
    options: JsonCompileOptions = {"whitespace_pattern": _WHITESPACE, "whitespace_flexible": True, "lenient": False}
    if prepared.open_names:
        options["json_allowed_escapes"] = _ONE_SPELLING
    return options


def _with_schemas(lark: str, schemas: list[Any]) -> str:
    """A Lark grammar with each `@N` replaced by JSON that fulfils the N-th schema. Raises InvalidGrammar."""
    rules = []
    for number, schema in enumerate(schemas):
        try:
            if not isinstance(schema, dict):
                raise InvalidGrammar("it is no object")
            prepared = prepare_schema(schema)
        except InvalidGrammar as error:  # the gateway knows whose schema it is
            raise InvalidGrammar(f"schema {number}: {error}") from error
        guided = {**prepared.schema, "x-guidance": _json_options(prepared)}
        rules.append(f"arguments_{number}: %json {json.dumps(guided)}")
    return "\n".join([re.sub(r"@(\d+)", r"arguments_\1", lark), *rules])


def _by_kind(kind: str, body: Any) -> str:
    match kind:
        case "json_schema":
            prepared = prepare_schema(body)
            definition = json.dumps(prepared.schema)  # the library itself serializes no integers beyond 64 bits
            return llguidance.LLMatcher.grammar_from_json_schema(definition, overrides=_json_options(prepared))
        case "regex":
            return llguidance.LLMatcher.grammar_from_regex(body)
        case "choice":
            if not body:
                raise InvalidGrammar("there is nothing to choose from")
            # One regular expression: a rule with as many branches would cost the parser more.
            return llguidance.LLMatcher.grammar_from_regex("|".join(map(re.escape, body)))
        case "grammar":
            return llguidance.LLMatcher.grammar_from_lark(any_to_lark(body))
        case "calls":
            return llguidance.LLMatcher.grammar_from_lark(_with_schemas(body["lark"], body["schemas"]))
    raise InvalidGrammar(f"there is no kind of grammar named {kind!r}")
