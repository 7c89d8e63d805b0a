"""Flags, environment, TOML file: which wins, and how a bad value is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnpike import settings
from turnpike.settings import SettingError, Settings

ROOT = Path(__file__).resolve().parents[2]


def test_flag_wins_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "turnpike.toml"
    file.write_text('port = 1\nhost = "a"\nworkers = 7\n')
    environment = {"TURNPIKE_CONFIG": str(file), "TURNPIKE_PORT": "2", "TURNPIKE_HOST": "b"}
    loaded = settings.load({"port": "3", "host": None}, environment)
    assert (loaded.port, loaded.host, loaded.workers) == (3, "b", 7)
    assert loaded.max_running == Settings().max_running


@pytest.mark.parametrize(
    ("flags", "environment", "names"),
    [
        ({"port": "eighty"}, {}, ["port", "--port"]),
        ({}, {"TURNPIKE_PORT": "-1"}, ["port", "TURNPIKE_PORT"]),
        ({}, {"TURNPIKE_DEVICE": "tpu"}, ["device", "TURNPIKE_DEVICE", "tpu"]),
        ({"port": "65536"}, {}, ["port", "--port", "65535"]),
        ({"workers": "0"}, {}, ["workers"]),
        ({"request_timeout": "inf"}, {}, ["request_timeout"]),
        ({"drain_timeout": "nan"}, {}, ["drain_timeout"]),
        ({"config": "no-such-file.toml"}, {}, ["config", "no-such-file.toml"]),
    ],
)
def test_a_bad_value_is_refused_by_name_and_source(
    flags: dict[str, str], environment: dict[str, str], names: list[str]
) -> None:
    with pytest.raises(SettingError) as refused:
        settings.load(flags, environment)
    assert all(name in str(refused.value) for name in names)


@pytest.mark.parametrize(("text", "name"), [("prot = 1", "prot"), ("port = 'x'", "port"), ("port = ", "TOML")])
def test_a_bad_file_is_refused(tmp_path: Path, text: str, name: str) -> None:
    file = tmp_path / "turnpike.toml"
    file.write_text(text)
    with pytest.raises(SettingError, match=name):
        settings.load({"config": str(file)}, {})


def test_every_setting_has_a_description_and_a_role() -> None:
    for name in Settings.__struct_fields__:
        meta = settings.describe(name)
        assert meta.description
        assert meta.extra
        assert meta.extra["roles"]


def test_the_reference_page_is_what_the_program_prints() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == settings.reference(), "run: make docs"


def test_lists_and_defaults() -> None:
    given = Settings(model="a, b,", replicas="unix:/x,tcp:h:1", data_dir="d")
    assert [str(folder) for folder in given.model_folders] == ["a", "b"]
    assert given.replica_addresses == ["unix:/x", "tcp:h:1"]
    assert given.database.startswith("sqlite:////")
    assert given.secrets == Path("d/secrets.json")
