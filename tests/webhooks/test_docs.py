"""The verification that docs/webhooks.md shows is one."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from webhooks.endpoints import TOPICS
from webhooks.signing import headers, new_secret, shown

PAGE = Path(__file__).parent.parent.parent / "docs" / "webhooks.md"


def test_the_page_names_every_topic() -> None:
    named = re.findall(r"^\| (`\S+`(?:, `\S+`)*) \|", PAGE.read_text(), re.MULTILINE)
    assert {topic for row in named for topic in re.findall(r"`(\S+)`", row)} == set(TOPICS)


def test_the_page_verifies_what_is_sent() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)  # it is our own page
    old, new = new_secret(), new_secret()
    now = int(time.time())
    for keys in ([new], [new, old]):
        names["verify"](shown(new), headers("evt_1", now, b"{}", keys), b"{}")
    names["verify"](shown(old), headers("evt_1", now, b"{}", [new, old]), b"{}")
    for secret, at, body in ((old, now, b"{}"), (new, now - 400, b"{}"), (new, now, b"{ }")):
        with pytest.raises(ValueError, match=r"wrong|old"):
            names["verify"](shown(secret), headers("evt_1", at, b"{}", [new]), body)
