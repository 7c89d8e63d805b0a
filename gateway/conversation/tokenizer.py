"""Text to token ids, in two voices: the template's, where special tokens mean something, and the client's.

What the client wrote is tokenized with special tokens *not* recognised, so that nobody can end a turn by typing its end
token. Byte-level vocabularies run on tiktoken when it gives the same ids on samples, others on `tokenizers`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import structlog
import tokenizers

from gateway.conversation.byte_level import FastEncoder, bytes_of, convert

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
    """The tokenizer's file cannot be used; the message names it."""


class Tokenizer:
    """One model's vocabulary. `special` are the ids that are never shown as text."""

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
        self._added = self.special_texts | self._plain_added
        self.size = self._literal.get_vocab_size(with_added_tokens=True)
        self.opening = self._opening()
        """What the tokenizer itself puts before a text that stands alone, such as a token that begins it."""
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
        """The tokenizer of a `tokenizer.json`. Raises TokenizerError naming the file."""
        try:
            return cls(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise TokenizerError(f"cannot read {path}: {error.strerror}") from error
        except Exception as error:  # tokenizers raises bare Exception, json and lookups their own
            raise TokenizerError(f"{path} is not a tokenizer: {error}") from error

    @property
    def fast(self) -> bool:
        """Whether tiktoken does the work."""
        return self._fast is not None

    def literal(self, text: str) -> list[int]:
        """Ids of a template's own text, special tokens recognised."""
        return self._encode(text, self._added, self._literal)

    def content(self, text: str) -> list[int]:
        """Ids of a client's text, in which special tokens are text like any other."""
        return self._encode(text, self._plain_added, self._content)

    def _encode(self, text: str, recognised: frozenset[str], slow: tokenizers.Tokenizer) -> list[int]:
        if self._fast is None:
            return slow.encode(text, add_special_tokens=False).ids
        try:
            return self._fast.encode(text, recognised)
        except ValueError:
            # Its regex engine gives up on white space without end; `tokenizers` would hold up the whole process for
            # seconds. So such a text is cut in the middle: always in the same place, and it decodes to itself.
            middle = len(text) // 2
            return self._encode(text[:middle], recognised, slow) + self._encode(text[middle:], recognised, slow)

    def least_tokens(self, characters: int) -> int:
        """A number of tokens that no text of so many characters has fewer of; 0 where that cannot be said."""
        return characters // self._longest if self._longest else 0

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token of a byte-level vocabulary stands for; none for special and unknown ids.

        Of another vocabulary: the byte that a token is, and none for tokens that are text.
        """
        return self._bytes.get(token, b"")

    def spelled(self, token: int) -> tuple[str, bytes]:
        """A token by itself, special or not: its text, with what is no whole character replaced, and its bytes."""
        name = self._special_names.get(token)
        if name is not None:
            return name, name.encode()
        raw = self.token_bytes(token)
        if not (raw or self.byte_level):
            # The second of two, since the first one of a text may lose its space.
            raw = self.decode([token, token])[len(self.decode([token])) :].encode()
        return raw.decode(errors="replace"), raw

    def decode(self, tokens: list[int]) -> str:
        """The whole text of `tokens`, special ones left out."""
        return self._literal.decode(tokens, skip_special_tokens=True)

    def _longest_token(self, parsed: dict[str, Any]) -> int:
        """The most characters that a token stands for, of a vocabulary that spells every byte; 0 if there is no most:
        an added token may take all the white space around it, and a normalizer may shorten the text."""
        added = parsed.get("added_tokens") or []
        if not self.byte_level or parsed.get("normalizer") or any(one["lstrip"] or one["rstrip"] for one in added):
            return 0
        return max(map(len, [*self._bytes.values(), *(one["content"] for one in added)]), default=0)

    def _opening(self) -> list[int]:
        plain = self._literal.encode("a", add_special_tokens=False).ids
        whole = self._literal.encode("a", add_special_tokens=True).ids
        at = next((at for at in range(len(whole)) if whole[at : at + len(plain)] == plain), 0)
        return whole[:at] if plain else []

    def _token_bytes(self, parsed: dict[str, Any]) -> dict[int, bytes]:
        table: dict[int, bytes] = {}
        for token, number in parsed["model"]["vocab"].items():
            raw = bytes_of(token)
            table[number] = token.encode() if raw is None else raw
        for entry in parsed.get("added_tokens") or []:
            table[entry["id"]] = b"" if entry["special"] else entry["content"].encode()
        return table

    def _fallback_bytes(self, parsed: dict[str, Any]) -> dict[int, bytes]:
        """The tokens that are a byte each, for texts that the others cannot spell."""
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
