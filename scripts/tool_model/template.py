"""The vocabulary and the chat template: words apart from white space and signs, so that what is copied is the same tokens."""

from __future__ import annotations

from collections.abc import Iterable

from demo_model import tokenizer
from tokenizers import Tokenizer

BEGIN, TOOLS, SYSTEM, USER, ASSISTANT, RESULT, CALL, CALL_END, END = SPECIAL_TOKENS = (
    "<|begin|>",
    "<|tools|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
    "<tool_call>",
    "</tool_call>",
    "<|end|>",
)

# A word begins at a capital, also within a name; digits, signs and white space stand alone.
SPLIT = r"\p{Lu}?\p{Ll}+|\p{Lu}+(?!\p{Ll})|\p{L}|\p{N}|\s|[^\s\p{L}\p{N}]"

CHAT_TEMPLATE = """\
{{- '<|begin|>' -}}
{%- if tools -%}
{{- '<|tools|>' -}}
{%- for tool in tools -%}
{%- set function = tool['function'] -%}
{{- '# ' ~ function['name'] -}}
{%- if function['description'] %}{{- ': ' ~ function['description'] }}{% endif -%}
{%- set schema = function['parameters'] or {} -%}
{%- for key, value in (schema['properties'] or {}).items() -%}
{{- '\\n- ' ~ key ~ ' (' -}}
{%- if value['enum'] -%}
{{- 'one of ' ~ value['enum'] | join(', ') -}}
{%- elif value['type'] is string -%}
{{- value['type'] -}}
{%- if value['items'] and value['items']['type'] is string %}{{- ' of ' ~ value['items']['type'] }}{% endif -%}
{%- elif value['anyOf'] and value['anyOf'][0]['type'] is string -%}
{{- value['anyOf'][0]['type'] -}}
{%- else -%}
{{- value | tojson -}}
{%- endif -%}
{{- ', required)' if key in (schema['required'] or []) else ')' -}}
{%- if value['description'] %}{{- ': ' ~ value['description'] }}{% endif -%}
{%- endfor -%}
{{- '\\n' -}}
{%- endfor -%}
{{- '<|end|>' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message['role'] not in ['system', 'user', 'assistant', 'tool'] -%}
{{- raise_exception('the roles are system, user, assistant and tool, not ' ~ message['role']) -}}
{%- endif -%}
{{- '<|' ~ message['role'] ~ '|>' -}}
{%- if message['content'] %}{{- message['content'] }}{% endif -%}
{%- for call in message['tool_calls'] or [] -%}
{%- if not loop.first or message['content'] %}{{- '\\n' }}{% endif -%}
{{- '<tool_call>\\n{"name": "' ~ call['function']['name'] ~ '", "arguments": ' -}}
{{- call['function']['arguments'] | tojson ~ '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|assistant|>' -}}
{%- endif -%}
"""


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Learn the vocabulary of a caller of tools, in the words of this module."""
    return tokenizer.train_tokenizer(texts, vocabulary, split=SPLIT, special_tokens=SPECIAL_TOKENS, longest=16)
