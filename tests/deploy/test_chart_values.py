"""The Helm chart's values without Helm: known settings, every one within reach, a word on each value."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
import pytest
import yaml

from tests.deploy.chart import CHART, ROOT, SCHEMA, SET_BY, names_of, schema_of_today
from tests.deploy.prometheus import RULES
from turnpike.settings.loading import environment_name
from turnpike.settings.settings import ADMIN, ENGINE, GATEWAY, WORKER, Settings

VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
TEMPLATES = "".join(path.read_text() for path in sorted((CHART / "templates").iterdir()))


def allowed(values: Mapping[str, Any]) -> bool:
    return bool(jsonschema.Draft7Validator(json.loads(SCHEMA.read_text())).is_valid({**VALUES, **values}))


def test_the_schema_knows_todays_settings() -> None:
    assert SCHEMA.read_text() == schema_of_today(), "run `make docs`"


def test_the_chart_keeps_its_own_schema() -> None:
    jsonschema.Draft7Validator.check_schema(json.loads(SCHEMA.read_text()))
    assert allowed({})


@pytest.mark.parametrize(
    "values",
    [
        {"gatway": {}},
        {"gateway": {**VALUES["gateway"], "replicas": 0}},
        {"gateway": {**VALUES["gateway"], "settings": {"body_limt": 1}}},
        {"worker": {**VALUES["worker"], "settings": {"max_running": 1}}},
        {"engines": {"a": {"replicas": 0}}},
        {"engines": {"gateway": {}}},
        {"engines": {"A": {}}},
        {"secrets": {"masterKey": "plaintext"}},
    ],
)
def test_the_schema_refuses(values: dict[str, Any]) -> None:
    assert not allowed(values)


def test_every_setting_of_a_role_is_reached() -> None:
    """By `settings`, or by the value that the chart has for it; those of commands alone are words of the command."""
    reached = set(SET_BY).union(*map(names_of, (GATEWAY, WORKER, ENGINE)))
    missing = set(Settings.__struct_fields__) - reached - set(names_of(ADMIN))
    assert missing == set()
    for setting, places in SET_BY.items():
        assert setting == "config" or environment_name(setting) in TEMPLATES, setting
        for place in places.split(", "):
            at: Any = VALUES
            for word in place.split("."):
                assert word in at or place == "settings", f"{setting}: there is no value {place}"
                at = at.get(word, {})


def test_what_the_chart_sets_are_settings() -> None:
    named = set(re.findall(r"TURNPIKE_[A-Z_]+", TEMPLATES)) - {"TURNPIKE_"}
    assert named <= {environment_name(name) for name in Settings.__struct_fields__}


def test_each_value_is_used_and_known_to_the_schema() -> None:
    schema = json.loads(SCHEMA.read_text())
    assert set(VALUES) == set(schema["properties"]) - {"global"}
    for role, definition in (("gateway", None), ("worker", None), ("engineDefaults", "engine")):
        known = schema["definitions"][definition] if definition else schema["properties"][role]
        assert set(VALUES[role]) == set(known["properties"])
    for path in _leaves(VALUES):
        assert path[-1] in TEMPLATES, f"no template reads {'.'.join(path)}"


def test_the_page_names_each_part_of_the_values() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    assert [
        name for name in VALUES if f"`{name}" not in page and name not in ("nameOverride", "fullnameOverride")
    ] == []
    for setting, places in SET_BY.items():
        if setting not in ("config", "port"):
            assert all(f"`{place}" in page for place in places.split(", ")), setting


def test_the_chart_has_the_alerts_of_deploy() -> None:
    assert (CHART / "files" / RULES.name).resolve() == RULES


def _leaves(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in values.items():
        if isinstance(value, dict) and value and name not in ("requests", "limits"):
            yield from _leaves(value, (*path, name))
        elif name not in ("requests", "limits"):
            yield (*path, name)
