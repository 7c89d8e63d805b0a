"""Tiny models with the families' templates, whose markers are tokens as the families have them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tokenizers import AddedToken

from tests.gateway.tiny_model import make_model_folder, make_tokenizer

FAMILIES = Path(__file__).with_name("families")
MARKER = re.compile(
    r"<｜[^<>｜]+｜>|<\|[a-z_/]+\|>|\[/?[A-Z]+(?:_[A-Z]+)*\]|</?(?:think|tool_call|start_of_turn|end_of_turn)>"
)
_ENDS = {"gpt-oss": "<|return|>"}
"""Family → its end token, where it is not the tiny model's."""


def source_of(family: str) -> str:
    return (FAMILIES / f"{family}.jinja").read_text(encoding="utf-8")


def family_folder(folder: Path, family: str, context: int = 4096, *, plain: bool = False) -> Path:
    """A model folder with this family's template. `plain`: its markers of reasoning and calls are added tokens that are
    not special, as Qwen and DeepSeek have them."""
    made = make_model_folder(folder, template=source_of(family), context=context)
    tokenizer = make_tokenizer()
    markers = [*MARKER.findall(source_of(family)), *filter(None, [_ENDS.get(family)])]
    added = {text for text in markers if plain and ("think" in text or "tool" in text)}
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in sorted(added)])
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in markers if text not in added])
    tokenizer.save(str(made / "tokenizer.json"))
    if family in _ENDS:
        end = tokenizer.token_to_id(_ENDS[family])
        (made / "generation_config.json").write_text(json.dumps({"eos_token_id": end, "do_sample": False}))
    return made
