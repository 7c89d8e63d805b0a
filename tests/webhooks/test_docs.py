"""docs/webhooks.md names every topic, and its example verifies real messages."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from turnpike.admin_services import webhook_topics
from webhooks.signing import encode_secret, headers, new_secret

PAGE = Path(__file__).parent.parent.parent / "docs" / "webhooks.md"


def test_the_page_names_every_topic() -> None:
    named = re.findall(r"^\| (`\S+`(?:, `\S+`)*) \|", PAGE.read_text(), re.MULTILINE)
    assert {topic for row in named for topic in re.findall(r"`(\S+)`", row)} == set(webhook_topics())


def test_the_page_verifies_what_is_sent() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)  # it is our own page
    old, new = new_secret(), new_secret()
    now = int(time.time())
    for keys in ([new], [new, old]):
        names["verify"](encode_secret(new), headers("evt_1", now, b"{}", keys), b"{}")
    names["verify"](encode_secret(old), headers("evt_1", now, b"{}", [new, old]), b"{}")
    for secret, at, body in ((old, now, b"{}"), (new, now - 400, b"{}"), (new, now, b"{ }")):
        with pytest.raises(ValueError, match=r"wrong|old"):
            names["verify"](encode_secret(secret), headers("evt_1", at, b"{}", [new]), body)
