"""GET /openapi.json and /docs of a running gateway, and `turnpike openapi` without one."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from gateway.openapi.document import operations_of
from gateway.openapi.page import document_page
from tests.gateway.stack import Stack
from turnpike.cli import main


class Links(HTMLParser):
    """What a page would load, and where it leads."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.links: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        assert tag != "script"
        assert not [name for name in values if name.startswith("on") or name == "style"]
        if "src" in values or tag == "link":
            self.loaded.append(str(values))
        if values.get("id"):
            self.anchors.add(str(values["id"]))
        if values.get("href"):
            self.links.add(str(values["href"]))


async def test_the_document_and_its_page(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    answer = await stack.http.get("/openapi.json")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    document = answer.json()
    assert document["openapi"] == "3.1.0"
    tenants = (await stack.http.get("/openapi.json", params={"audience": "tenants"})).json()
    assert {path for path in document["paths"] if not path.startswith("/admin/v1")} == set(tenants["paths"])
    for query in ("audience=nobody", "for=tenants"):
        assert (await stack.http.get(f"/openapi.json?{query}")).status_code == 400

    page = await stack.http.get("/docs")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    for method, path, operation in operations_of(document):
        assert f'id="{operation["operationId"]}"' in page.text
        assert f">{method}</span> <code>{path}</code>" in page.text
    assert "/admin/v1" not in (await stack.http.get("/docs?audience=tenants")).text
    style = re.search(r"<style>(.*?)</style>", page.text, re.S)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    policy = page.headers["content-security-policy"]
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}';")
    found = Links()
    found.feed(page.text)
    assert found.loaded == []
    assert {link for link in found.links if not link.startswith("#")} == {
        "?audience=tenants",
        "openapi.json?audience=all",
    }
    assert {link[1:] for link in found.links if link.startswith("#")} <= found.anchors

    capsys.readouterr()
    assert main(["openapi"]) == 0
    assert json.loads(capsys.readouterr().out) == document


def test_texts_of_the_document_are_no_html() -> None:
    text = "<script>alert(1)</script>"
    operation = {
        "operationId": "x",
        "summary": text,
        "description": text,
        "tags": [text],
        "x-permission": None,
        "x-principals": [],
        "responses": {"200": {"description": text, "content": {"text/plain": {"schema": {}, "example": text}}}},
    }
    document = {
        "openapi": "3.1.0",
        "info": {"title": text, "version": "0", "description": text},
        "paths": {"/x": {"get": operation}},
        "components": {"schemas": {}},
    }
    page = document_page(document, "all")
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 6
