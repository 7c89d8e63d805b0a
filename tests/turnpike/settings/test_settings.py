"""Flags, environment, TOML file: which wins, and how a bad value is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from engine.options import DRAFTERS, TEXT_DRAFTERS
from engine.scheduling.fairness.lanes import LANE_WEIGHTS
from engine.scheduling.fairness.queue_limits import Bound, QueueBounds
from engine.scheduling.scheduler import TOKEN_TARGETS
from engine.server import replica
from engine.startup.options import ReplicaOptions
from storage.database.database import SQLITE_WAIT_S, Database
from turnpike.commands import engine
from turnpike.settings import loading, secrets, settings
from turnpike.settings.settings import SettingError, Settings

ROOT = Path(__file__).resolve().parents[3]


def test_flag_wins_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "turnpike.toml"
    file.write_text('port = 1\nhost = "a"\nworkers = 7\n')
    environment = {"TURNPIKE_CONFIG": str(file), "TURNPIKE_PORT": "2", "TURNPIKE_HOST": "b"}
    loaded = loading.load({"port": "3", "host": None}, environment)
    assert (loaded.port, loaded.host, loaded.workers) == (3, "b", 7)
    assert loaded.max_running == Settings().max_running


async def test_a_request_waits_for_sqlite_for_as_long_as_sqlite_waits(tmp_path: Path) -> None:
    """A newcomer's first requests meet others that write, on a machine that is busy: that is no outage."""
    embedded, server = Settings(data_dir=str(tmp_path)), Settings(database_url="postgresql://x/y")
    assert (embedded.database_wait, server.database_wait) == (SQLITE_WAIT_S, 5)
    assert Settings(database_timeout=2.5).database_wait == 2.5
    database = await Database.open(embedded.database)
    try:
        async with database.transaction() as session:
            assert await session.scalar(text("PRAGMA busy_timeout")) == SQLITE_WAIT_S * 1000
        async with database.reading() as session:
            assert await session.scalar(text("PRAGMA busy_timeout")) == SQLITE_WAIT_S * 1000
    finally:
        await database.close()


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
        ({"database_timeout": "inf"}, {}, ["database_timeout", "--database-timeout", "finite"]),
        ({}, {"TURNPIKE_SWAP_SHARE": "inf"}, ["swap_share", "TURNPIKE_SWAP_SHARE", "finite"]),
        ({"queue_timeout_batch": "nan"}, {}, ["queue_timeout_batch"]),
        ({"lane_weights": "interactive=8;standard=4"}, {}, ["lane_weights", "--lane-weights", "8;standard=4"]),
        ({"speculation": "ngram,tree"}, {}, ["speculation", "--speculation", "tree", "auto, off", "ngram"]),
        ({}, {"TURNPIKE_SPECULATION": "ngram,ngram"}, ["speculation", "TURNPIKE_SPECULATION", "twice"]),
        ({}, {"TURNPIKE_LANE_WEIGHTS": "fast=1"}, ["lane_weights", "TURNPIKE_LANE_WEIGHTS", "fast", "interactive"]),
        ({"inter_token_targets": "batch=0"}, {}, ["inter_token_targets", "batch=0", "above 0"]),
        ({"inter_token_targets": "batch=nan"}, {}, ["inter_token_targets", "above 0"]),
        ({"queue_requests_flow": "batch=1,batch=2"}, {}, ["queue_requests_flow", "batch", "twice"]),
        ({"queue_requests_lane": "standard"}, {}, ["queue_requests_lane", "'standard' is not LANE=VALUE"]),
        ({"queue_seconds_flow": "standard=soon"}, {}, ["queue_seconds_flow", "soon"]),
        ({"queue_seconds_lane": "standard=-1"}, {}, ["queue_seconds_lane", "-1"]),
        ({"queue_requests": "0"}, {}, ["queue_requests"]),
        ({"config": "no-such-file.toml"}, {}, ["config", "no-such-file.toml"]),
    ],
)
def test_a_bad_value_is_refused_by_name_and_source(
    flags: dict[str, str], environment: dict[str, str], names: list[str]
) -> None:
    with pytest.raises(SettingError) as refused:
        loading.load(flags, environment)
    assert all(name in str(refused.value) for name in names)


@pytest.mark.parametrize(("text", "name"), [("prot = 1", "prot"), ("port = 'x'", "port"), ("port = ", "TOML")])
def test_a_bad_file_is_refused(tmp_path: Path, text: str, name: str) -> None:
    file = tmp_path / "turnpike.toml"
    file.write_text(text)
    with pytest.raises(SettingError, match=name):
        loading.load({"config": str(file)}, {})


def test_every_setting_has_a_description_and_a_role() -> None:
    for name in Settings.__struct_fields__:
        meta = loading.describe(name)
        assert meta.description
        assert meta.extra
        assert meta.extra["roles"]


def test_the_reference_page_is_what_the_program_prints() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == loading.reference(), "run: make docs"


def test_lists_and_defaults() -> None:
    loaded = Settings(model="a, b,", replicas="unix:/x,tcp:h:1", data_dir="d")
    assert [str(folder) for folder in loaded.model_folders] == ["a", "b"]
    assert loaded.replica_addresses == ["unix:/x", "tcp:h:1"]
    assert loaded.database.startswith("sqlite:////")
    assert loaded.secrets == Path("d/secrets.json")


def test_draft_models_stand_in_the_order_of_the_models() -> None:
    loaded = Settings(model="a,b,c", draft_model=",d", data_dir="d")
    assert [loaded.draft_folder(at) for at in range(3)] == [None, Path("d"), None]
    assert "draft-model" not in loaded.drafters_of(0), "the first model has none"
    assert "draft-model" in loaded.drafters_of(1)
    assert "draft-model" in Settings(model="a", draft_model="d").drafters_of(0)
    with pytest.raises(SettingError, match="draft_model: 2 folders for 1 models"):
        Settings(model="a", draft_model="d,e").draft_folder(0)
    with pytest.raises(SettingError, match="speculation: draft-model needs the setting draft_model"):
        _ = Settings(model="a", speculation="draft-model").drafters_of(0)


def test_values_by_lane_are_the_engines_unless_they_are_set() -> None:
    loaded = loading.load({"lane_weights": "batch=2"}, {})
    assert loaded.by_lane("lane_weights") == {**LANE_WEIGHTS, "batch": 2.0}
    assert loading.load({}, loading.to_environment(loaded)) == loaded, "as serve hands them to its replica"


def test_a_replica_is_told_what_the_settings_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[ReplicaOptions] = []
    monkeypatch.setattr(replica, "main", lambda options: started.append(options) or 0)
    common = {"listen": "unix:/x", "data_dir": str(tmp_path)}
    secrets.save(secrets.generate(), tmp_path / "secrets.json")
    by_lane = {"interactive": 1.0, "standard": 2.0, "batch": 3.0}
    text = ",".join(f"{lane}={value:g}" for lane, value in by_lane.items())
    for flags in ({}, dict.fromkeys(settings.BY_LANE, text) | {"queue_requests": "7"}):
        assert engine.run_engine(loading.load(common | flags, {})) == 0
    usual, own = started
    assert (usual.lane_weights, usual.token_targets, usual.bounds) == (LANE_WEIGHTS, TOKEN_TARGETS, QueueBounds())
    assert own.lane_weights == by_lane
    assert own.token_targets == {lane: value * 1e6 for lane, value in by_lane.items()}
    assert own.bounds.flow == own.bounds.lane == {lane: Bound(int(n), n * 1e6) for lane, n in by_lane.items()}
    assert own.bounds.requests == 7


def test_what_may_wait_in_all_leaves_room_for_each_lane_beside_the_others() -> None:
    """Else one tenant's batch, within its own bounds, would have everybody's interactive requests refused."""
    assert Settings().queue_requests >= sum(Settings().by_lane("queue_requests_lane").values())


def test_the_attention_of_each_model() -> None:
    assert Settings().attention_of(0) == "exact"
    loaded = loading.load({"model": "a,b", "attention": "exact; fast"}, {})
    assert [loaded.attention_of(at) for at in range(2)] == ["exact", "fast"]
    assert loading.load({"model": "a,b", "attention": "fast"}, {}).attention_of(1) == "fast", (
        "one choice is that of all"
    )
    with pytest.raises(SettingError, match="attention: 2 choices for 1 models"):
        loading.load({"model": "a", "attention": "exact;fast"}, {}).attention_of(0)
    with pytest.raises(SettingError, match=r"attention \(from --attention\): 'faster' is not exact or fast"):
        loading.load({"attention": "faster"}, {})


def test_the_drafters_of_speculation_in_the_order_in_which_they_are_asked() -> None:
    assert list(Settings().drafters_of(0)) == list(TEXT_DRAFTERS)
    assert list(loading.load({"speculation": "off"}, {}).drafters_of(0)) == []
    assert list(loading.load({"speculation": "suffix, grammar"}, {}).drafters_of(0)) == ["grammar", "suffix"]


def test_each_model_has_its_own_drafters() -> None:
    loaded = loading.load({"speculation": "off; ngram,suffix;auto", "model": "a,b,c", "draft_model": ",,d"}, {})
    assert [list(loaded.drafters_of(at)) for at in range(3)] == [[], ["ngram", "suffix"], list(DRAFTERS)]
    one = Settings(model="a,b", speculation="ngram")
    assert [list(one.drafters_of(at)) for at in range(2)] == [["ngram"], ["ngram"]], "one choice is that of all"
    with pytest.raises(SettingError, match="speculation: 2 choices for 3 models"):
        Settings(model="a,b,c", speculation="off;auto").drafters_of(0)
    with pytest.raises(SettingError, match=r"speculation.*--speculation.*tree"):
        loading.load({"speculation": "auto;tree"}, {})
