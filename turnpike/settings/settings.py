"""Settings: each is a flag, an environment variable `TURNPIKE_…`, or a key of one optional TOML file, in that order.

One struct is the whole reference: its fields' types, defaults and descriptions make the flags, the checks and
`docs/settings.md`. A value that does not fit raises `SettingError`, which names the setting and where it came from.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta

from protocol.requests import LANES, Lane
from storage.reported_error import ReportedError


def parse_lane_values(text: str, default: str = "") -> dict[Lane, float]:
    """The values by lane, the default's where `text` has none. Raises ValueError saying what is wrong with which part.

    Values are finite and above 0: nothing that is set by lane means anything at 0.
    """
    values = dict(parse_lane_values(default)) if default else {}
    lanes: Mapping[str, Lane] = {lane: lane for lane in LANES}
    given = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, written = (piece.strip() for piece in part.partition("="))
        if not equals or name not in lanes:
            raise ValueError(f"{part!r} is not LANE=VALUE with one of the lanes {', '.join(LANES)}")
        if name in given:
            raise ValueError(f"{name} is given twice")
        try:
            value = float(written)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{part!r}: {written!r} is not a number above 0")
        given.add(name)
        values[lanes[name]] = value
    return values


ENVIRONMENT_PREFIX = "TURNPIKE_"
CHECKOUT = Path(__file__).resolve().parent.parent.parent
DEMO_MODEL = CHECKOUT / "models" / "stdlib-qa"

SERVE, GATEWAY, ENGINE, WORKER, ADMIN = "serve", "gateway", "engine", "worker", "admin"
ALL = (SERVE, GATEWAY, ENGINE, WORKER, ADMIN)
ALL_BUT_ENGINE = (SERVE, GATEWAY, WORKER, ADMIN)
_DAY = 86_400
_NAME_LENGTH = 40


class SettingError(ReportedError):
    """A setting has no usable value; the message names it, its source and what would be accepted."""


def _about(text: str, *roles: str, at_least: float | None = None, at_most: float | None = None) -> Meta:
    return Meta(description=text, ge=at_least, le=at_most, extra={"roles": roles})


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be set from outside. `roles` in a field's metadata: the commands that take it as a flag."""

    data_dir: Annotated[str, _about("folder for the database, spools, journals and secrets", *ALL)] = "turnpike-data"
    config: Annotated[str, _about("TOML file with any of these settings", *ALL)] = ""
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], _about("least severe message that is logged", *ALL)
    ] = "info"
    log_format: Annotated[
        Literal["auto", "json", "console"], _about("auto: readable on a terminal, JSON elsewhere", *ALL)
    ] = "auto"
    secrets_file: Annotated[
        str, _about("file with the server's secrets, mode 0600; default: DATA_DIR/secrets.json", *ALL)
    ] = ""

    database_url: Annotated[
        str,
        _about("sqlite:///PATH or postgresql://…; default: DATA_DIR/turnpike.db", SERVE, GATEWAY, WORKER, ADMIN),
    ] = ""
    redis_url: Annotated[
        str, _about("redis://…; empty: counters and revocations stay in the process", SERVE, GATEWAY, WORKER, ADMIN)
    ] = ""
    model: Annotated[
        str, _about("model folder; a gateway takes several, separated by commas", SERVE, GATEWAY, ENGINE, ADMIN)
    ] = ""

    operator_key_file: Annotated[
        str,
        _about("file with your operator's key: who you are in what changes prices and contract terms", ADMIN),
    ] = ""
    public_prices: Annotated[
        bool, _about("GET /v1/prices answers without a key too, with the base book", SERVE, GATEWAY)
    ] = False

    host: Annotated[str, _about("address to listen on", SERVE, GATEWAY)] = "127.0.0.1"
    port: Annotated[int, _about("port to listen on; 0: any free one", SERVE, GATEWAY, at_least=0, at_most=65535)] = 8080
    metrics_listen: Annotated[
        str,
        _about(
            "HOST:PORT for /metrics, /healthz and /readyz alone; without it /metrics answers on --port if --host is a"
            " loopback address, else nowhere",
            SERVE,
            GATEWAY,
        ),
    ] = ""
    max_connections: Annotated[
        int,
        _about(
            "open connections of a gateway process; one more takes the place of the one that is idle for longest",
            SERVE,
            GATEWAY,
            at_least=1,
        ),
    ] = 10_000
    max_connections_per_address: Annotated[
        int,
        _about(
            "… from one address; 0: any number, as behind a load balancer, whose address they all have",
            SERVE,
            GATEWAY,
            at_least=0,
        ),
    ] = 0
    database_timeout: Annotated[
        float,
        _about(
            "how long a request waits for a database that does not answer, before it is refused with 503; seconds",
            SERVE,
            GATEWAY,
            at_least=0.1,
        ),
    ] = 5.0
    replicas: Annotated[str, _about("replicas, separated by commas: unix:PATH or tcp:HOST:PORT", GATEWAY, ADMIN)] = ""
    gateway_name: Annotated[
        str,
        _about(
            "name of this gateway, which no other one has; default: the host's name and the data folder's identity",
            SERVE,
            GATEWAY,
        ),
    ] = ""
    shared_data_dir: Annotated[
        bool,
        _about(
            "gateways share DATA_DIR: each takes a folder of its own in it, the first of gateway-0, gateway-1, … that "
            "no other one uses",
            GATEWAY,
        ),
    ] = False
    workers: Annotated[int, _about("gateway processes", GATEWAY, at_least=1)] = 1
    body_limit: Annotated[int, _about("largest request body, bytes", SERVE, GATEWAY, at_least=1024)] = 8 * 1024 * 1024
    request_timeout: Annotated[
        float, _about("longest time that a request may run, seconds", SERVE, GATEWAY, at_least=1, at_most=_DAY)
    ] = 600.0
    hold_slice_tokens: Annotated[
        int,
        _about(
            "output tokens whose money is held at a time while a request runs; 0: all it may have, at admission",
            SERVE,
            GATEWAY,
            at_least=0,
        ),
    ] = 0
    allowance_requests: Annotated[
        int,
        _about(
            "so many requests of a tenant that wait for their holds at once get money set aside for the tenant, from "
            "which others are admitted without asking the database; 0: none ever do",
            SERVE,
            GATEWAY,
            at_least=0,
        ),
    ] = 8
    drain_timeout: Annotated[
        float,
        _about(
            "how long running requests may finish at a stop, seconds", SERVE, GATEWAY, ENGINE, at_least=0, at_most=_DAY
        ),
    ] = 30.0

    period_grace: Annotated[
        int, _about("how long after its end a billing period is left open, seconds", SERVE, WORKER, at_least=0)
    ] = 3600

    listen: Annotated[str, _about("unix:PATH or tcp:HOST:PORT to listen on", ENGINE)] = ""
    replica_name: Annotated[str, _about("name of this replica, the same after a restart", ENGINE)] = ""
    device: Annotated[Literal["auto", "cpu", "cuda"], _about("where the model runs", SERVE, ENGINE)] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        _about("type of weights and KV; auto: float32 on the CPU, bfloat16 on a GPU", SERVE, ENGINE),
    ] = "auto"
    quantize: Annotated[
        Literal["none", "fp8", "mxfp4"],
        _about("what linear weights are rounded to while they are loaded", SERVE, ENGINE),
    ] = "none"
    weights: Annotated[
        Literal["auto", "decoded", "packed"],
        _about(
            "whether weights of a quantized model are decoded while they are loaded (faster) or kept as they are and"
            " decoded at each use (smaller, the same answers); auto: decoded if they take less than half of the memory",
            SERVE,
            ENGINE,
        ),
    ] = "auto"
    kv_dtype: Annotated[
        Literal["auto", "fp8"],
        _about(
            "what KV is stored in; fp8: 8 bits with a scale for each token and head, so that two to four times the"
            " tokens fit; slightly less exact, and shared only among replicas that store it so",
            SERVE,
            ENGINE,
        ),
    ] = "auto"
    kv_memory: Annotated[int, _about("bytes for KV blocks; 0: from what is free", SERVE, ENGINE, at_least=0)] = 0
    swap_share: Annotated[
        float,
        _about("host memory for the KV of preempted requests, as a share of the KV blocks", SERVE, ENGINE, at_least=0),
    ] = 0.25
    max_running: Annotated[
        int,
        _about(
            "requests in one batch; 0: 64, and up to 512 on a GPU with kernels for the model", SERVE, ENGINE, at_least=0
        ),
    ] = 0
    token_budget: Annotated[
        int,
        _about("tokens computed in one step; 0: 512, and up to 8,704 on such a GPU", SERVE, ENGINE, at_least=0),
    ] = 0
    queue_timeout_interactive: Annotated[
        float,
        _about(
            "longest wait for a replica's attention in the interactive lane, seconds; 0: none",
            SERVE,
            ENGINE,
            at_least=0,
        ),
    ] = 30.0
    queue_timeout_standard: Annotated[float, _about("… in the standard lane", SERVE, ENGINE, at_least=0)] = 300.0
    queue_timeout_batch: Annotated[float, _about("… in the batch lane", SERVE, ENGINE, at_least=0)] = 0.0
    lane_weights: Annotated[
        str, _about("shares of engine time between lanes that have work, as LANE=WEIGHT,…", SERVE, ENGINE)
    ] = "interactive=8,standard=4,batch=1"
    inter_token_targets: Annotated[
        str,
        _about(
            "longest time between two tokens of a running request, as LANE=SECONDS,…; prefill beside it is cut so that"
            " this holds, as far as decoding alone allows",
            SERVE,
            ENGINE,
        ),
    ] = "interactive=0.1,standard=0.2,batch=1"  # noqa: S105  # no secret
    queue_requests: Annotated[
        int, _about("requests that may wait for a replica, in all", SERVE, ENGINE, at_least=1)
    ] = 24_576
    queue_requests_lane: Annotated[str, _about("… in a lane, as LANE=REQUESTS,…", SERVE, ENGINE)] = (
        "interactive=1024,standard=4096,batch=16384"
    )
    queue_requests_flow: Annotated[str, _about("… of one tenant in a lane, as LANE=REQUESTS,…", SERVE, ENGINE)] = (
        "interactive=256,standard=1024,batch=4096"
    )
    queue_seconds_lane: Annotated[
        str,
        _about("seconds of engine time whose requests may wait in a lane, as LANE=SECONDS,…", SERVE, ENGINE),
    ] = "interactive=300,standard=3600,batch=172800"
    queue_seconds_flow: Annotated[str, _about("… of one tenant in a lane, as LANE=SECONDS,…", SERVE, ENGINE)] = (
        "interactive=60,standard=600,batch=86400"
    )
    stall_timeout: Annotated[
        float,
        _about(
            "how long a step may last, beyond ten times what the fullest should, before the replica writes all stacks"
            " and ends, to be started again; seconds",
            SERVE,
            ENGINE,
            at_least=1,
            at_most=_DAY,
        ),
    ] = 120.0
    context: Annotated[int, _about("context in tokens; 0: the model's own", SERVE, ENGINE, at_least=0)] = 0

    export_dir: Annotated[
        str,
        _about("folder for exports, shared by gateways and workers; default: DATA_DIR/exports", SERVE, GATEWAY, WORKER),
    ] = ""
    export_keep_days: Annotated[
        int, _about("days after which the file of a finished export is removed", SERVE, WORKER, at_least=1)
    ] = 30
    hold_keep_days: Annotated[
        int, _about("days after which a hold that ended without usage is forgotten", SERVE, WORKER, at_least=7)
    ] = 90
    budget_keep_days: Annotated[
        int,
        _about(
            "days after which it is forgotten which budgets counted a request, and what they spent in a month or day",
            SERVE,
            WORKER,
            at_least=62,
        ),
    ] = 400
    webhook_keep_days: Annotated[
        int, _about("days after which messages and deliveries that ended are forgotten", SERVE, WORKER, at_least=1)
    ] = 90
    webhook_allow_http: Annotated[
        bool, _about("let webhooks go to http:// too, for development", SERVE, GATEWAY, WORKER, ADMIN)
    ] = False
    webhook_allow_networks: Annotated[
        str,
        _about("networks, not public, that webhooks may go to, such as 10.0.0.0/8", SERVE, GATEWAY, WORKER, ADMIN),
    ] = ""
    webhook_give_up_days: Annotated[
        int, _about("days after which a webhook that is not taken is given up", SERVE, WORKER, at_least=1, at_most=30)
    ] = 3
    provider_name: Annotated[
        str, _about("who provides the service and invoices it, in FOCUS exports", SERVE, WORKER, ADMIN)
    ] = "Turnpike"
    account_codes: Annotated[
        str, _about("codes of the journal's accounts, such as revenue=4400,receivable=1200", SERVE, WORKER, ADMIN)
    ] = ""

    def by_lane(self, name: str) -> dict[Lane, float]:
        """The numbers of a setting that has one for each lane. Raises ValueError where `load` did not check it."""
        return parse_lane_values(getattr(self, name), BY_LANE[name])

    @property
    def data(self) -> Path:
        """The data folder."""
        return Path(self.data_dir)

    @property
    def database(self) -> str:
        """The database URL, the embedded database when none was set."""
        return self.database_url or f"sqlite:///{(self.data / 'turnpike.db').absolute()}"

    @property
    def embedded_database(self) -> Path | None:
        """The file of the embedded database; None when a database server was set."""
        scheme, _, path = self.database.partition(":///")
        return Path(path) if scheme == "sqlite" else None

    @property
    def exports(self) -> Path:
        """The folder of exports."""
        return Path(self.export_dir) if self.export_dir else self.data / "exports"

    @property
    def secrets(self) -> Path:
        """The secrets file."""
        return Path(self.secrets_file) if self.secrets_file else self.data / "secrets.json"

    @property
    def model_folders(self) -> list[Path]:
        """The model folders, the demo model when none was set."""
        return [Path(part.strip()) for part in self.model.split(",") if part.strip()] or [DEMO_MODEL]

    @property
    def replica_addresses(self) -> list[str]:
        """Where the replicas listen; the one that `serve` starts when none was set."""
        return [part.strip() for part in self.replicas.split(",") if part.strip()] or [self.own_replica_address]

    @property
    def own_replica_address(self) -> str:
        """Where the replica that `serve` starts listens."""
        return f"unix:{(self.data / 'run' / 'replica-0.sock').absolute()}"

    @property
    def own_gateway_name(self) -> str:
        """What holds, spools and metrics call this gateway: the same after a restart."""
        return _gateway_name(self.gateway_name)

    def worker_name(self, index: int) -> str:
        """The gateway name of one worker among several; no two have the same, however long the gateway's own is."""
        return _gateway_name(self.gateway_name, f"-{index}")


def _gateway_name(wanted: str, suffix: str = "") -> str:
    name = re.sub(r"[^A-Za-z0-9_-]", "-", wanted or socket.gethostname())
    return name[: _NAME_LENGTH - len(suffix)] + suffix


BY_LANE: Mapping[str, str] = {
    field.name: str(field.default)
    for field in msgspec.structs.fields(Settings)
    if field.name in ("lane_weights", "inter_token_targets") or field.name.endswith(("_lane", "_flow"))
}
"""The settings with a value for each lane, and their defaults."""
_HINTS = get_type_hints(Settings, include_extras=True)
_NAMES = Settings.__struct_fields__


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


def _convert(name: str, value: object, source: str) -> object:
    try:
        converted: object = msgspec.convert(value, _HINTS[name], strict=False)
        if name in BY_LANE:
            parse_lane_values(str(converted))
        return converted
    except (msgspec.ValidationError, ValueError) as error:
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


_MOVED = {
    "price_approvals": "unset it. Two people are asked for by the platform, whatever a command's environment says: "
    "turnpike platform set approvals on"
}
"""What was a setting once and must not be overlooked now."""


def load(flags: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Settings:
    """The settings from flags (None: not given), environment and the TOML file, checked. Raises SettingError."""
    environment = os.environ if environment is None else environment
    given: dict[str, tuple[object, str]] = {}
    config = flags.get("config") or environment.get(environment_name("config"))
    if config:
        given |= {name: (value, str(config)) for name, value in _from_file(str(config)).items()}
    for name, instead in _MOVED.items():
        if environment_name(name) in environment:
            raise SettingError(f"{environment_name(name)} is no setting any more: {instead}")
    for name in _NAMES:
        if (value := environment.get(environment_name(name))) is not None:
            given[name] = (value, environment_name(name))
        if (flag := flags.get(name)) is not None:
            given[name] = (flag, flag_name(name))
    return Settings(**{name: _convert(name, value, source) for name, (value, source) in given.items()})  # type: ignore[arg-type]  # each value was converted to its field's type


def to_environment(settings: Settings) -> dict[str, str]:
    """The settings as environment variables, for a child process that shall have the same."""
    return {environment_name(name): str(getattr(settings, name)) for name in _NAMES if name != "config"}


def reference() -> str:
    """The settings as a Markdown table: what `docs/settings.md` holds."""
    rows = [
        "# Settings",
        "",
        "Made by `turnpike settings --markdown > docs/settings.md`; a test compares. A flag wins over the environment,",
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
