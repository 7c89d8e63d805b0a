"""Text to token ids: a template's text with special tokens recognised, a client's text without.

Clients therefore cannot end a turn by writing its end token. Byte-level vocabularies use tiktoken if it gives the same
ids on samples, others use `tokenizers`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import structlog
import tokenizers

from gateway.conversation.byte_level import FastEncoder, bytes_of, convert
from model_files.gguf_values import GgufError
from model_files.model_documents import read_document

log = structlog.get_logger("gateway.tokenizer")

_SAMPLES = (
    "Hello, world! It's 2026; we'll see whether they're right.",
    "  def f(x):\n\treturn {'a': 1, \"b\": [2.5e-3]}  # \n\n\n   \r\n",
    "Grüße aus Köln, 東京からこんにちは, Привет, مرحبا, नमस्ते 👩‍👩‍👧‍👦🇩🇪 e\u0301 ﬁ",
    "1234567890 12,345.678 0xFF aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "\u00a0\u2028\u0085 \x00\x1f\ufeff <|end|> </s> [INST] \ue000",
    " ", "\n", "a", "",
)  # fmt: skip


class TokenizerError(Exception):
    """The tokenizer's file cannot be used. The message names it."""


class Tokenizer:
    """A model's tokenizer. `special`: the ids that are never shown as text."""

    def __init__(self, definition: str) -> None:
        """`definition` is the text of a `tokenizer.json`."""
        parsed: dict[str, Any] = json.loads(definition)
        self._literal = tokenizers.Tokenizer.from_str(definition)
        self._content = tokenizers.Tokenizer.from_str(definition)
        for tokenizer in (self._literal, self._content):
            tokenizer.no_truncation()
            tokenizer.no_padding()
        self._content.encode_special_tokens = True
        added = parsed.get("added_tokens") or []
        self.special = frozenset(token["id"] for token in added if token["special"])
        self.special_texts = frozenset(token["content"] for token in added if token["special"])
        self._plain_added = frozenset(token["content"] for token in added if not token["special"])
        self.marker_texts = self.special_texts | frozenset(filter(_in_angle_brackets, self._plain_added))
        """The texts of tokens that grammars know by name, and of which they make no text: the special ones, and added
        ones in angle brackets, such as Qwen's `<tool_call>`."""
        self._added = self.special_texts | self._plain_added
        self.size = self._literal.get_vocab_size(with_added_tokens=True)
        self.opening = self._opening()
        """The tokens that the tokenizer puts before a text that stands alone, such as BOS."""
        self._special_names = {token["id"]: token["content"] for token in added if token["special"]}
        self.byte_level = "ByteLevel" in json.dumps(parsed.get("decoder"))
        self._bytes = self._token_bytes(parsed) if self.byte_level else self._fallback_bytes(parsed)
        fast = convert(parsed) if self.byte_level else None
        self._fast = fast if fast is not None and self._agrees(fast) else None
        self._longest = self._longest_token(parsed)
        if fast is not None and self._fast is None:
            log.warning("tiktoken gives other ids than tokenizers for this vocabulary; using tokenizers")

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """The tokenizer of a `tokenizer.json`. Raises TokenizerError naming the file, GgufError."""
        try:
            return cls(read_document(path).decode())
        except GgufError:
            raise
        except OSError as error:
            raise TokenizerError(f"cannot read {path}: {error.strerror}") from error
        except Exception as error:  # `tokenizers` raises bare Exception
            raise TokenizerError(f"{path} is not a tokenizer: {error}") from error

    @property
    def fast(self) -> bool:
        """Whether tiktoken is used."""
        return self._fast is not None

    def literal(self, text: str) -> list[int]:
        """Ids of a template's text, with special tokens recognised."""
        return self._encode(text, self._added, self._literal)

    def content(self, text: str) -> list[int]:
        """Ids of a client's text, in which special tokens are ordinary text."""
        return self._encode(text, self._plain_added, self._content)

    def _encode(self, text: str, recognised: frozenset[str], slow: tokenizers.Tokenizer) -> list[int]:
        if self._fast is None:
            return slow.encode(text, add_special_tokens=False).ids
        try:
            return self._fast.encode(text, recognised)
        except ValueError:
            # tiktoken's regex engine gives up on very long white space, and `tokenizers` would block the process for
            # seconds. Such a text is split in the middle: deterministic, and it still decodes to itself.
            middle = len(text) // 2
            return self._encode(text[:middle], recognised, slow) + self._encode(text[middle:], recognised, slow)

    def ids_of(self, texts: Iterable[str]) -> dict[int, str]:
        """The ids of those of these texts that are one added token each, special or not."""
        known = {text: self._literal.token_to_id(text) for text in texts if text in self._added}
        return {number: text for text, number in known.items() if number is not None}

    def least_tokens(self, characters: int) -> int:
        """A lower bound of the tokens of any text of so many characters; 0 if unknown."""
        return characters // self._longest if self._longest else 0

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token; empty for special and unknown ids.

        In a vocabulary that is not byte-level, only byte tokens have bytes; others are empty.
        """
        return self._bytes.get(token, b"")

    def spelled(self, token: int) -> tuple[str, bytes]:
        """A single token, special or not: its text, with incomplete characters replaced, and its bytes."""
        name = self._special_names.get(token)
        if name is not None:
            return name, name.encode()
        raw = self.token_bytes(token)
        if not (raw or self.byte_level):
            # Decoded as the second of two, because a text's first token may lose its space.
            raw = self.decode([token, token])[len(self.decode([token])) :].encode()
        return raw.decode(errors="replace"), raw

    def decode(self, tokens: list[int]) -> str:
        """The text of `tokens`, without special ones."""
        return self._literal.decode(tokens, skip_special_tokens=True)

    def _longest_token(self, parsed: dict[str, Any]) -> int:
        """The most characters that a token of a byte-level vocabulary stands for; 0 if there is no such bound, because
        an added token takes the white space around it or a normalizer shortens the text."""
        added = parsed.get("added_tokens") or []
        if (
            not self.byte_level
            or parsed.get("normalizer")
            or any(token["lstrip"] or token["rstrip"] for token in added)
        ):
            return 0
        return max(map(len, [*self._bytes.values(), *(token["content"] for token in added)]), default=0)

    def _opening(self) -> list[int]:
        plain = self._literal.encode("a", add_special_tokens=False).ids
        complete = self._literal.encode("a", add_special_tokens=True).ids
        start = next((i for i in range(len(complete)) if complete[i : i + len(plain)] == plain), 0)
        return complete[:start] if plain else []

    def _token_bytes(self, parsed: dict[str, Any]) -> dict[int, bytes]:
        table: dict[int, bytes] = {}
        for token, number in parsed["model"]["vocab"].items():
            raw = bytes_of(token)
            table[number] = token.encode() if raw is None else raw
        for entry in parsed.get("added_tokens") or []:
            table[entry["id"]] = b"" if entry["special"] else entry["content"].encode()
        return table

    def _fallback_bytes(self, parsed: dict[str, Any]) -> dict[int, bytes]:
        """Byte tokens (`<0x0A>`) -> their byte, for texts that other tokens cannot spell."""
        if "ByteFallback" not in json.dumps(parsed.get("decoder")):
            return {}
        numbers = {byte: self._literal.token_to_id(f"<0x{byte:02X}>") for byte in range(256)}
        return {token: bytes([byte]) for byte, token in numbers.items() if token is not None}

    def _agrees(self, fast: FastEncoder) -> bool:
        samples = [*_SAMPLES, *(f"a{text}b {text}" for text in self._added), "\n".join(_SAMPLES)]
        return all(
            fast.encode(sample, self._added) == self._literal.encode(sample, add_special_tokens=False).ids
            and fast.encode(sample, self._plain_added) == self._content.encode(sample, add_special_tokens=False).ids
            for sample in samples
        )


def _in_angle_brackets(text: str) -> bool:
    return text.startswith("<") and text.endswith(">")
