"""Loads the settings from flags, environment variables `TURNPIKE_…` and a TOML file; writes their reference."""

from __future__ import annotations

import argparse
import math
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from engine.options import parse_attention, parse_speculation, split_speculation
from turnpike.settings.settings import BY_LANE, SettingError, Settings, parse_lane_values

ENVIRONMENT_PREFIX = "TURNPIKE_"
_HINTS = get_type_hints(Settings, include_extras=True)
_NAMES = Settings.__struct_fields__
_MOVED = {
    "price_approvals": "unset it. Approvals are a setting of the whole platform: `turnpike platform set approvals on`"
}
"""Former settings that must not be overlooked, and what is to be done instead."""


def describe(name: str) -> Meta:
    """The description, bounds and roles of a setting."""
    meta: Meta = _HINTS[name].__metadata__[0]
    return meta


def environment_name(name: str) -> str:
    """The setting's environment variable."""
    return ENVIRONMENT_PREFIX + name.upper()


def flag_name(name: str) -> str:
    """The setting's flag."""
    return "--" + name.replace("_", "-")


def add_flags(parser: argparse.ArgumentParser, role: str) -> None:
    """Add the flags of the settings that a role takes."""
    group = parser.add_argument_group("settings (each also as an environment variable)")
    for name in _NAMES:
        meta = describe(name)
        if role in (meta.extra or {})["roles"]:
            text = f"{meta.description} [{environment_name(name)}]"
            group.add_argument(flag_name(name), dest=name, metavar=name.upper(), default=None, help=text)


def _choices(name: str) -> tuple[str, ...]:
    """The values of a setting that can have no others."""
    of = get_args(_HINTS[name])[0]
    return get_args(of) if get_origin(of) is Literal else ()


def _convert(name: str, value: object, source: str) -> object:
    try:
        converted: object = msgspec.convert(value, _HINTS[name], strict=False)
        if isinstance(converted, float) and not math.isfinite(converted):
            raise ValueError(f"{value!r} is not a finite number")
        if name in BY_LANE:
            parse_lane_values(str(converted))
        if name == "speculation":
            for of_model in split_speculation(str(converted)):
                parse_speculation(of_model, draft_model=True)
        if name == "attention":
            for of_model in split_speculation(str(converted)):
                parse_attention(of_model)
        return converted
    except (msgspec.ValidationError, ValueError) as error:
        if choices := _choices(name):
            raise SettingError(f"{name} (from {source}): {value!r} is not one of {', '.join(choices)}") from error
        raise SettingError(f"{name} (from {source}): {error}") from error


def _from_file(path: str) -> dict[str, object]:
    try:
        values: dict[str, object] = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise SettingError(f"config: cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"config: {path} is not TOML: {error}") from error
    if unknown := sorted(set(values) - set(_NAMES)):
        raise SettingError(f"{unknown[0]} (from {path}): there is no such setting")
    return values


def load(flags: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Settings:
    """The settings from flags (None: left out), environment and TOML file, checked.

    Raises SettingError, which names the setting and where its value is from.
    """
    environment = os.environ if environment is None else environment
    values: dict[str, tuple[object, str]] = {}
    config = flags.get("config") or environment.get(environment_name("config"))
    if config:
        values |= {name: (value, str(config)) for name, value in _from_file(str(config)).items()}
    for name, advice in _MOVED.items():
        if environment_name(name) in environment:
            raise SettingError(f"{environment_name(name)} is no setting any more: {advice}")
    for name in _NAMES:
        if (value := environment.get(environment_name(name))) is not None:
            values[name] = (value, environment_name(name))
        if (flag := flags.get(name)) is not None:
            values[name] = (flag, flag_name(name))
    return Settings(**{name: _convert(name, value, source) for name, (value, source) in values.items()})  # type: ignore[arg-type]  # each value was converted to its field's type


def to_environment(settings: Settings) -> dict[str, str]:
    """The settings as environment variables, for a child process that has the same."""
    return {environment_name(name): str(getattr(settings, name)) for name in _NAMES if name != "config"}


def reference() -> str:
    """The settings as a Markdown table: what `docs/settings.md` holds."""
    rows = [
        "# Settings",
        "",
        "Made by `turnpike settings --markdown`; a test compares. A flag wins over the environment,",
        "the environment over the TOML file named by `--config`.",
        "",
        "| flag | environment | default | commands | what |",
        "|---|---|---|---|---|",
    ]
    for field in msgspec.structs.fields(Settings):
        meta = describe(field.name)
        roles = ", ".join((meta.extra or {})["roles"])
        default = f"`{field.default}`" if field.default != "" else ""
        rows.append(
            f"| `{flag_name(field.name)}` | `{environment_name(field.name)}` | {default} | {roles} "
            f"| {meta.description} |"
        )
    return "\n".join(rows) + "\n"
