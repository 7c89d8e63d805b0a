"""The document as one page of HTML, made on the server: no script, no foreign host, and a policy that forbids both."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, Template

from gateway.openapi.document import Audience, Document, operations_of

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { margin: 0 auto; max-width: 72rem; padding: 1rem; }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1rem; list-style: none; padding: 0; }
details { border: 1px solid #8886; border-radius: .4rem; margin: .4rem 0; padding: .4rem .8rem; }
details.answer { border-style: dotted; }
summary { cursor: pointer; overflow-wrap: anywhere; }
.method { display: inline-block; font-weight: 700; min-width: 4.5rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { border-bottom: 1px solid #8886; padding: .25rem .6rem; text-align: left; vertical-align: top; }
pre { background: #8882; border-radius: .3rem; overflow: auto; padding: .6rem; max-height: 24rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 1rem; }
dd { margin: 0; }
.bound { font-size: .85em; opacity: .8; }
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def document_page(document: Document, audience: Audience) -> str:
    """The page. All texts of the document are escaped."""
    groups: dict[str, list[Any]] = {}
    for method, path, operation in operations_of(document):
        groups.setdefault(operation["tags"][0], []).append((method, path, operation))
    return _template().render(document=document, audience=audience, groups=dict(sorted(groups.items())), style=_STYLE)


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["pretty"] = lambda value: json.dumps(value, indent=2, ensure_ascii=False)
    return environment.from_string(files("gateway.openapi").joinpath("page.html").read_text(encoding="utf-8"))
