"""A served-model folder made in a moment: a small byte-level BPE, a chat template, no weights."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPECIALS = ["<|begin|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CORPUS = [
    "What does textwrap.dedent do? Remove any common leading whitespace from every line in text.",
    "The quick brown fox jumps over the lazy dog. Grüße aus Köln! 東京 こんにちは",
    "def f(x):\n    return x + 1\n\nclass A:\n    pass\n",
] * 4
TEMPLATE = """\
{{- '<|begin|>' -}}
{%- for message in messages -%}
{%- if message['role'] not in ['system', 'user', 'assistant'] -%}
{{- raise_exception('unknown role ' ~ message['role']) -}}
{%- endif -%}
{{- '<|' ~ message['role'] ~ '|>' ~ message['content'] ~ '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
"""


def make_tokenizer(vocabulary: int = 600) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIALS])
    return tokenizer


def make_spaced_tokenizer() -> str:
    """A `tokenizer.json` as SentencePiece's models have it: spaces are letters, and bytes are tokens of their own."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    definition = json.loads(tokenizer.to_str())
    # Bytes are ordinary tokens, as in the vocabularies that people use; only a trainer needs them to be special.
    definition["added_tokens"] = [token for token in definition["added_tokens"] if token["content"][:3] != "<0x"]
    return json.dumps(definition)


def make_model_folder(
    folder: Path, *, name: str = "tiny", context: int = 512, min_cacheable: int = 8, template: str = TEMPLATE
) -> Path:
    folder.mkdir(parents=True)
    tokenizer = make_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    end = tokenizer.token_to_id("<|end|>")
    (folder / "config.json").write_text(
        json.dumps({"model_type": "llama", "max_position_embeddings": context, "eos_token_id": end})
    )
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end, "do_sample": False}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|begin|>", "eos_token": "<|end|>"}))
    (folder / "chat_template.jinja").write_text(template)
    (folder / "turnpike.toml").write_text(f'name = "{name}"\nmin_cacheable_tokens = {min_cacheable}\n')
    return folder
