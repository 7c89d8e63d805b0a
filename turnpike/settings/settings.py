"""The settings: one struct whose types, defaults and descriptions make the flags, the checks and `docs/settings.md`.

`turnpike.settings.loading` reads them from flags, environment variables and a TOML file.
"""

from __future__ import annotations

import math
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from engine.options import Attention, parse_attention, parse_speculation, split_speculation
from engine.scheduling.fairness.lanes import LANE_WEIGHTS
from protocol.requests import LANES, Lane
from storage.reported_error import ReportedError
from tracing.options import TraceOptions, read_headers

if TYPE_CHECKING:
    from gateway.fleet.replica_rates import DeviceCosts

CHECKOUT = Path(__file__).resolve().parent.parent.parent
DEMO_MODEL = CHECKOUT / "models" / "stdlib-qa"

SERVE, GATEWAY, ENGINE, WORKER, ADMIN = "serve", "gateway", "engine", "worker", "admin"
ALL = (SERVE, GATEWAY, ENGINE, WORKER, ADMIN)
_DAY = 86_400
_NAME_LENGTH = 40


_SILENT_S, _SQLITE_S = 5.0, 30.0
"""How long a request waits for a database server that is silent, and for SQLite. A file is not silent: others write, on
a machine that may be busy, and each has its turn (`storage.database.database.SQLITE_WAIT_S`)."""


class SettingError(ReportedError):
    """A setting has no usable value. The message names it, its source and what would be accepted."""


def parse_lane_values(text: str, default: str = "") -> dict[Lane, float]:
    """The values of `LANE=VALUE,…` by lane, the default's where `text` has none.

    A value is finite and above 0. Raises ValueError, which names the part that is wrong.
    """
    values = dict(parse_lane_values(default)) if default else {}
    lanes: Mapping[str, Lane] = {lane: lane for lane in LANES}
    named = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, written = (piece.strip() for piece in part.partition("="))
        if not equals or name not in lanes:
            raise ValueError(f"{part!r} is not LANE=VALUE with one of the lanes {', '.join(LANES)}")
        if name in named:
            raise ValueError(f"{name} is given twice")
        try:
            value = float(written)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{part!r}: {written!r} is not a number above 0")
        named.add(name)
        values[lanes[name]] = value
    return values


def _about(text: str, *roles: str, at_least: float | None = None, at_most: float | None = None) -> Meta:
    return Meta(description=text, ge=at_least, le=at_most, extra={"roles": roles})


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings. `roles` in a field's metadata names the commands that take it as a flag."""

    data_dir: Annotated[str, _about("folder for the database, spools, journals and secrets", *ALL)] = "turnpike-data"
    config: Annotated[str, _about("TOML file with any of these settings", *ALL)] = ""
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], _about("least severe level that is logged", *ALL)
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
        str, _about("redis://…; default: counters and revocations stay in the process", SERVE, GATEWAY, WORKER, ADMIN)
    ] = ""
    model: Annotated[
        str,
        _about(
            "model folder or GGUF file; serve and gateway take several, separated by commas",
            SERVE,
            GATEWAY,
            ENGINE,
            ADMIN,
        ),
    ] = ""
    model_aliases: Annotated[
        str,
        _about(
            "ALIAS=MODEL,…: further names under which clients may ask for served models; /v1/models lists them",
            SERVE,
            GATEWAY,
        ),
    ] = ""

    operator_key_file: Annotated[
        str,
        _about("file with your operator's key, which proves who changes prices and contract terms", ADMIN),
    ] = ""
    public_prices: Annotated[
        bool, _about("GET /v1/prices answers without a key too, with the prices of the base book", SERVE, GATEWAY)
    ] = False

    cors_origins: Annotated[
        str,
        _about(
            "origins, separated by commas, whose pages may call /v1 from a browser; *: any; default: none",
            SERVE,
            GATEWAY,
        ),
    ] = ""
    host: Annotated[str, _about("address to listen on", SERVE, GATEWAY)] = "127.0.0.1"
    port: Annotated[int, _about("port to listen on; 0: any free one", SERVE, GATEWAY, at_least=0, at_most=65535)] = 8080
    metrics_listen: Annotated[
        str,
        _about(
            "HOST:PORT for /metrics, /healthz and /readyz alone; default: /metrics answers on --port if --host is a "
            "loopback address, else nowhere",
            SERVE,
            GATEWAY,
        ),
    ] = ""
    max_connections: Annotated[
        int,
        _about(
            "most open connections of a gateway process; one more closes the connection that is idle for longest",
            SERVE,
            GATEWAY,
            at_least=1,
        ),
    ] = 10_000
    max_connections_per_address: Annotated[
        int,
        _about(
            "… from one address; 0: any number, as behind a load balancer, where all have its address",
            SERVE,
            GATEWAY,
            at_least=0,
        ),
    ] = 0
    trusted_proxies: Annotated[
        str,
        _about(
            "networks of load balancers, separated by commas, whose X-Forwarded-For says who the client is; default: "
            "none, the connection's address is the client's",
            SERVE,
            GATEWAY,
        ),
    ] = ""
    database_timeout: Annotated[
        float,
        _about(
            "seconds that a request waits for a database that does not answer, before it is refused with 503; 0: 5, "
            "and 30 with SQLite, where the wait is for others that write",
            SERVE,
            GATEWAY,
            at_least=0,
        ),
    ] = 0.0
    cache_retention: Annotated[
        int,
        _about(
            "seconds that KV may lie in host memory and, sealed, on disk, where a project says nothing else; "
            "0: it never leaves the device",
            SERVE,
            GATEWAY,
            at_least=0,
            at_most=7 * 86_400,
        ),
    ] = 86_400
    response_retention: Annotated[
        int,
        _about(
            "seconds for which responses of the Responses API are kept, sealed, where a project says nothing else; "
            "0: they are not",
            SERVE,
            GATEWAY,
            at_least=0,
            at_most=400 * 86_400,
        ),
    ] = 30 * 86_400
    replicas: Annotated[
        str,
        _about(
            "replicas, separated by commas: unix:PATH, tcp:HOST:PORT, or dns:HOST:PORT, all A or AAAA records of HOST",
            GATEWAY,
            ADMIN,
        ),
    ] = ""
    replica_lookup: Annotated[
        float,
        _about("seconds between two lookups of the names in --replicas", GATEWAY, at_least=0.1, at_most=60),
    ] = 0.5
    gateway_name: Annotated[
        str,
        _about(
            "name of this gateway, unlike all others; default: the host's name and the data folder's identity",
            SERVE,
            GATEWAY,
        ),
    ] = ""
    shared_data_dir: Annotated[
        bool,
        _about(
            "gateways share DATA_DIR: each takes the first free folder in it of gateway-0, gateway-1, …",
            GATEWAY,
        ),
    ] = False
    workers: Annotated[int, _about("gateway processes", GATEWAY, at_least=1)] = 1
    body_limit: Annotated[int, _about("largest request body, bytes", SERVE, GATEWAY, at_least=1024)] = 8 * 1024 * 1024
    request_timeout: Annotated[
        float, _about("longest time that a request may run, in seconds", SERVE, GATEWAY, at_least=1, at_most=_DAY)
    ] = 600.0
    replica_wait: Annotated[
        float,
        _about(
            "seconds that a request waits for a replica while none of its model is ready, as while the first one is "
            "started; 0: it is refused at once",
            SERVE,
            GATEWAY,
            at_least=0,
            at_most=_DAY,
        ),
    ] = 30.0
    replica_wait_requests: Annotated[
        int,
        _about(
            "requests that wait so at once in a gateway process, at most 64 of a tenant; more are refused with 503",
            SERVE,
            GATEWAY,
            at_least=0,
        ),
    ] = 1024
    hold_slice_tokens: Annotated[
        int,
        _about(
            "output tokens for which a running request holds money at a time; 0: for all it may have, at admission",
            SERVE,
            GATEWAY,
            at_least=0,
        ),
    ] = 0
    allowance_requests: Annotated[
        int,
        _about(
            "when so many requests of a tenant wait for holds at once, or four times as many come within a second, "
            "money is set aside for the tenant, from which others are admitted without the database; 0: never",
            SERVE,
            GATEWAY,
            at_least=0,
        ),
    ] = 8
    lease_limit_tokens: Annotated[
        int,
        _about(
            "prompt tokens of which a project may have live cache leases at once; what is beyond gets no lease and is "
            "billed as uncached; 0: any number",
            SERVE,
            GATEWAY,
            at_least=0,
        ),
    ] = 10_000_000
    drain_timeout: Annotated[
        float,
        _about(
            "time that running requests have to finish at a stop, in seconds",
            SERVE,
            GATEWAY,
            ENGINE,
            at_least=0,
            at_most=_DAY,
        ),
    ] = 30.0

    period_grace: Annotated[
        int, _about("time that a billing period stays open after its end, in seconds", SERVE, WORKER, at_least=0)
    ] = 3600

    listen: Annotated[str, _about("unix:PATH or tcp:HOST:PORT to listen on", ENGINE)] = ""
    replica_name: Annotated[str, _about("name of this replica, the same after a restart", ENGINE)] = ""
    device: Annotated[Literal["auto", "cpu", "cuda"], _about("where the model runs", SERVE, ENGINE)] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        _about("type of weights and KV; auto: float32 on the CPU, bfloat16 on a GPU", SERVE, ENGINE),
    ] = "auto"
    quantize: Annotated[
        Literal["none", "fp8", "mxfp4", "nvfp4", "int4", "int4-g64", "int4-g32"],
        _about(
            "format to which linear weights are rounded while they are loaded; int4: a scale for 128 inputs, or 64, 32",
            SERVE,
            ENGINE,
        ),
    ] = "none"
    weights: Annotated[
        Literal["auto", "decoded", "packed"],
        _about(
            "when weights of a quantized model are decoded: while they are loaded (faster), or packed, at each use "
            "(smaller, the same answers); auto: decoded if they take less than half of the memory",
            SERVE,
            ENGINE,
        ),
    ] = "auto"
    kv_dtype: Annotated[
        Literal["auto", "fp8"],
        _about(
            "format of KV; fp8: 8 bits, a scale for each token and head: two to four times the tokens fit, slightly "
            "less exact, shared only among replicas that store it so",
            SERVE,
            ENGINE,
        ),
    ] = "auto"
    attention: Annotated[
        str,
        _about(
            "exact: the same bits in any batch, cold and cached; fast: by the library that measures fastest at start "
            "(cuDNN, FlashAttention), the prefixes of prompts alone are shared, and nothing is drafted; of several "
            "models one for all, or one each in their order with a semicolon between them",
            SERVE,
            ENGINE,
        ),
    ] = "exact"
    kv_memory: Annotated[int, _about("bytes for KV blocks; 0: from what is free", SERVE, ENGINE, at_least=0)] = 0
    swap_share: Annotated[
        float,
        _about(
            "host memory for KV that left the device (cached blocks, and preempted requests), as a part of the memory "
            "of KV blocks; 0: none",
            SERVE,
            ENGINE,
            at_least=0,
        ),
    ] = 0.25
    dram_memory: Annotated[int, _about("the same in bytes; 0: by --swap-share", SERVE, ENGINE, at_least=0)] = 0
    disk_memory: Annotated[
        int,
        _about(
            "most bytes of KV on disk, where a prompt survives a restart; a tenth of the file system stays free in any "
            "case; 0: none",
            SERVE,
            ENGINE,
            at_least=0,
        ),
    ] = 4 << 30
    disk_folder: Annotated[
        str, _about("folder for KV on disk, of one replica alone; default: DATA_DIR/kv", SERVE, ENGINE, ADMIN)
    ] = ""
    speculation: Annotated[
        str,
        _about(
            "who guesses the next tokens, which steps then verify: auto, off, or drafters as NAME,…; of several models "
            "one for all, or one each in their order with a semicolon between them; outputs are the same with any",
            SERVE,
            ENGINE,
        ),
    ] = "auto"
    draft_model: Annotated[
        str,
        _about(
            "folder of a small model with the same tokenizer, or of an EAGLE-3 head, that guesses the next tokens; the "
            "model's own folder: its layer for multi-token prediction; with several models in their order, empty "
            "for none",
            SERVE,
            ENGINE,
        ),
    ] = ""
    max_lora_rank: Annotated[
        int,
        _about(
            "the largest rank of adapters that a GPU computes; each adapter that is ready has memory for it, so that "
            "a smaller one leaves more for KV",
            SERVE,
            ENGINE,
            at_least=1,
            at_most=256,
        ),
    ] = 64
    max_loras: Annotated[
        int,
        _about(
            "adapters (LoRA) of projects that a replica has ready at a time; others are made ready when a request asks "
            "for them; 0: none are served",
            SERVE,
            ENGINE,
            at_least=0,
        ),
    ] = 16
    lora_memory: Annotated[
        int, _about("most bytes of adapters in a replica's host memory, ready or not", SERVE, ENGINE, at_least=1)
    ] = 4 << 30
    max_running: Annotated[
        int,
        _about(
            "most requests in one batch; 0: 64, and up to 512 on a GPU with kernels for the model",
            SERVE,
            ENGINE,
            at_least=0,
        ),
    ] = 0
    token_budget: Annotated[
        int,
        _about("most tokens computed in one step; 0: 512, and up to 8,704 on such a GPU", SERVE, ENGINE, at_least=0),
    ] = 0
    queue_timeout_interactive: Annotated[
        float,
        _about(
            "longest wait in a replica's queue in the interactive lane, in seconds; 0: no limit",
            SERVE,
            ENGINE,
            at_least=0,
        ),
    ] = 30.0
    queue_timeout_standard: Annotated[float, _about("… in the standard lane", SERVE, ENGINE, at_least=0)] = 300.0
    queue_timeout_batch: Annotated[float, _about("… in the batch lane", SERVE, ENGINE, at_least=0)] = 0.0
    lane_weights: Annotated[
        str, _about("shares of engine time between lanes that have work, as LANE=WEIGHT,…", SERVE, ENGINE)
    ] = ",".join(f"{lane}={weight:g}" for lane, weight in LANE_WEIGHTS.items())
    inter_token_targets: Annotated[
        str,
        _about(
            "longest time between two tokens of a running request, as LANE=SECONDS,…; prefill in the same batch is cut "
            "to keep it, as far as decoding alone does",
            SERVE,
            ENGINE,
        ),
    ] = "interactive=0.1,standard=0.2,batch=1"  # noqa: S105  # no secret
    queue_requests: Annotated[
        int, _about("most requests that may wait for a replica, in all lanes", SERVE, ENGINE, at_least=1)
    ] = 24_576
    queue_requests_lane: Annotated[str, _about("… in a lane, as LANE=REQUESTS,…", SERVE, ENGINE)] = (
        "interactive=1024,standard=4096,batch=16384"
    )
    queue_requests_flow: Annotated[str, _about("… of one tenant in a lane, as LANE=REQUESTS,…", SERVE, ENGINE)] = (
        "interactive=256,standard=1024,batch=4096"
    )
    queue_seconds_lane: Annotated[
        str,
        _about(
            "most engine time queued in a lane, as LANE=SECONDS,…; for waiting see --queue-timeout-*", SERVE, ENGINE
        ),
    ] = "interactive=300,standard=3600,batch=172800"
    queue_seconds_flow: Annotated[str, _about("… queued by one tenant in a lane, as LANE=SECONDS,…", SERVE, ENGINE)] = (
        "interactive=60,standard=600,batch=86400"
    )
    stall_timeout: Annotated[
        float,
        _about(
            "seconds that a step may last, beyond ten times the fullest step's estimate; after it the replica logs all "
            "stacks and ends, to be started again",
            SERVE,
            ENGINE,
            at_least=1,
            at_most=_DAY,
        ),
    ] = 120.0
    context: Annotated[int, _about("context in tokens; 0: the model's own", SERVE, ENGINE, at_least=0)] = 0
    foreign: Annotated[
        Literal["", "vllm", "sglang", "llamacpp"],
        _about("the engine of others that computes the model; empty: ours. --model then needs no weights", ENGINE),
    ] = ""
    foreign_url: Annotated[str, _about("where that engine answers, such as http://127.0.0.1:8000", ENGINE)] = ""
    foreign_key_file: Annotated[
        str, _about("file with the key that it wants as a bearer token; empty: none", ENGINE)
    ] = ""
    foreign_cache: Annotated[
        Literal["shared", "one-project"],
        _about(
            "one-project: llama.cpp, which cannot keep projects apart, caches prompts, and serves the first project "
            "that comes, for good, and no other",
            ENGINE,
        ),
    ] = "shared"

    export_dir: Annotated[
        str,
        _about("folder for exports, shared by gateways and workers; default: DATA_DIR/exports", SERVE, GATEWAY, WORKER),
    ] = ""
    export_keep_days: Annotated[
        int, _about("days after which the file of a finished export is removed", SERVE, WORKER, at_least=1)
    ] = 30
    file_dir: Annotated[
        str,
        _about("folder for files, shared by gateways and workers; default: DATA_DIR/files", SERVE, GATEWAY, WORKER),
    ] = ""
    file_quota: Annotated[
        int, _about("bytes of files, with the results of batches, that a project may keep", SERVE, GATEWAY, at_least=0)
    ] = 16 * 1024**3
    hold_keep_days: Annotated[
        int, _about("days after which a hold that ended without usage is forgotten", SERVE, WORKER, at_least=7)
    ] = 90
    budget_keep_days: Annotated[
        int,
        _about(
            "days after which the charges of requests to budgets, and the budgets' past windows, are forgotten",
            SERVE,
            WORKER,
            at_least=62,
        ),
    ] = 400
    waterfall_keep_days: Annotated[
        float,
        _about(
            "days after which it is forgotten where the time of a request went; 0: it is not kept at all",
            SERVE,
            GATEWAY,
            WORKER,
            at_least=0,
            at_most=400,
        ),
    ] = 7.0
    cost_currency: Annotated[str, _about("currency of what hardware costs", SERVE, GATEWAY, ADMIN)] = "USD"
    gpu_hour_cost: Annotated[
        float,
        _about(
            "what one GPU, or another device, costs an hour without power; 0: not said",
            *(SERVE, GATEWAY, ADMIN),
            at_least=0,
        ),
    ] = 0.0
    gpu_watts: Annotated[
        float, _about("power of one device under load, in watts", SERVE, GATEWAY, ADMIN, at_least=0)
    ] = 0.0
    power_price: Annotated[float, _about("what a kilowatt-hour costs", SERVE, GATEWAY, ADMIN, at_least=0)] = 0.0
    replica_devices: Annotated[int, _about("devices of a replica", SERVE, GATEWAY, ADMIN, at_least=1)] = 1
    device_bandwidth: Annotated[
        float,
        _about(
            "gigabytes that one device's memory moves a second, such as 4800; 0: not said",
            SERVE,
            GATEWAY,
            ADMIN,
            at_least=0,
        ),
    ] = 0.0
    device_teraflops: Annotated[
        float,
        _about(
            "10^12 operations of one device a second in the model's format, such as 989; 0: not said",
            SERVE,
            GATEWAY,
            ADMIN,
            at_least=0,
        ),
    ] = 0.0
    otlp_endpoint: Annotated[
        str,
        _about(
            "collector for traces by OTLP over HTTP, such as http://127.0.0.1:4318; empty: nothing is traced",
            SERVE,
            GATEWAY,
        ),
    ] = ""
    otlp_headers_file: Annotated[
        str, _about("file with headers for the collector, NAME: VALUE a line; it is read at the start", SERVE, GATEWAY)
    ] = ""
    trace_ratio: Annotated[
        float,
        _about(
            "part of requests that is traced, whatever comes of them; errors of ours and slow ones always are",
            SERVE,
            GATEWAY,
            at_least=0,
            at_most=1,
        ),
    ] = 0.01
    trace_slow: Annotated[
        float,
        _about("seconds to the first token beyond which a request is traced always", SERVE, GATEWAY, at_least=0),
    ] = 10.0
    webhook_keep_days: Annotated[
        int, _about("days after which ended messages and deliveries are forgotten", SERVE, WORKER, at_least=1)
    ] = 90
    webhook_allow_http: Annotated[
        bool, _about("webhooks may go to http:// too, for development", SERVE, GATEWAY, WORKER, ADMIN)
    ] = False
    webhook_allow_networks: Annotated[
        str,
        _about("private networks to which webhooks may go, such as 10.0.0.0/8", SERVE, GATEWAY, WORKER, ADMIN),
    ] = ""
    webhook_give_up_days: Annotated[
        int,
        _about("days after which a webhook that is not accepted is given up", SERVE, WORKER, at_least=1, at_most=30),
    ] = 3
    stripe_file: Annotated[
        str,
        _about(
            "file with the credentials of a Stripe account, mode 0600, by which money is collected; default: none, "
            "it comes by bank transfer",
            *(SERVE, GATEWAY, WORKER, ADMIN),
        ),
    ] = ""
    smtp_host: Annotated[
        str, _about("mail server that reminders of overdue invoices go to; empty: none are sent", SERVE, WORKER)
    ] = ""
    smtp_port: Annotated[int, _about("port of the mail server", SERVE, WORKER, at_least=1, at_most=65_535)] = 587
    smtp_encryption: Annotated[
        Literal["starttls", "tls", "none"],
        _about("how the mail server is spoken to: TLS after STARTTLS, TLS at once, or in clear", SERVE, WORKER),
    ] = "starttls"
    smtp_user: Annotated[str, _about("user at the mail server; empty: nobody signs in", SERVE, WORKER)] = ""
    smtp_password_file: Annotated[
        str, _about("file with the user's password; it is read at each message", SERVE, WORKER)
    ] = ""
    mail_from: Annotated[str, _about("sender of reminders, such as 'Billing <billing@example.com>'", SERVE, WORKER)] = (
        ""
    )
    sandbox_mail: Annotated[
        str,
        _about(
            "address that all reminders of a sandbox go to (its time is moved by hand, or its Stripe key is of test "
            "mode); without it a sandbox with a mail server does not start",
            *(SERVE, WORKER),
        ),
    ] = ""
    reminder_days: Annotated[
        str,
        _about(
            "days after an invoice's due date at which the levels of reminders begin; empty: no reminders",
            *(SERVE, GATEWAY, WORKER, ADMIN),
        ),
    ] = "3,14,30"
    reminder_folder: Annotated[
        str,
        _about("folder with letters of one's own: level-1.txt and so on; default: the built-in ones", SERVE, WORKER),
    ] = ""
    console_url: Annotated[
        str, _about("address at which tenants reach the console, for links in reminders", SERVE, WORKER)
    ] = ""
    provider_name: Annotated[
        str, _about("name of the service's provider and invoice issuer in FOCUS exports", SERVE, WORKER, ADMIN)
    ] = "Turnpike"
    vies_url: Annotated[
        str,
        _about(
            "where VAT ids are looked up, such as https://ec.europa.eu/taxation_customs/vies/rest-api; empty: never",
            SERVE,
            WORKER,
        ),
    ] = ""
    ecb_url: Annotated[
        str,
        _about(
            "where the euro's exchange rates are read, such as https://data-api.ecb.europa.eu; empty: never",
            SERVE,
            WORKER,
        ),
    ] = ""
    account_codes: Annotated[
        str,
        _about("codes of the accounts in journal exports, such as revenue=4400,receivable=1200", SERVE, WORKER, ADMIN),
    ] = ""
    datev: Annotated[
        str, _about("whose books a DATEV export is for, such as consultant=1001,client=1,length=4,key.S19=3", ADMIN)
    ] = ""

    def by_lane(self, name: str) -> dict[Lane, float]:
        """The values by lane of the setting `name`. Raises ValueError for a malformed one, which `load` refuses."""
        return parse_lane_values(getattr(self, name), BY_LANE[name])

    @property
    def reminder_levels(self) -> tuple[int, ...]:
        """Days after the due date at which the levels of reminders begin. Raises SettingError."""
        from billing.payments.dunning.due import parse_days  # few commands ask

        try:
            return parse_days(self.reminder_days)
        except ValueError as error:
            raise SettingError(f"reminder_days: {error}") from error

    def speculation_of(self, at: int) -> str:
        """What `speculation` says of the model at this place. Raises SettingError."""
        parts = split_speculation(self.speculation)
        if len(parts) not in (1, len(self.model_folders)):
            raise SettingError(f"speculation: {len(parts)} choices for {len(self.model_folders)} models")
        return parts[at % len(parts)]

    def drafters_of(self, at: int) -> Sequence[str]:
        """The names of the drafters of the model at this place. Raises SettingError."""
        try:
            return parse_speculation(self.speculation_of(at), draft_model=self.draft_folder(at) is not None)
        except ValueError as error:
            raise SettingError(f"speculation: {error}") from error

    def attention_of(self, at: int) -> Attention:
        """What `attention` says of the model at this place. Raises SettingError."""
        parts = split_speculation(self.attention)
        if len(parts) not in (1, len(self.model_folders)):
            raise SettingError(f"attention: {len(parts)} choices for {len(self.model_folders)} models")
        try:
            return parse_attention(parts[at % len(parts)])
        except ValueError as error:
            raise SettingError(f"attention: {error}") from error

    @property
    def data(self) -> Path:
        """The data folder."""
        return Path(self.data_dir)

    @property
    def kv_folder(self) -> Path:
        """The folder for KV on disk."""
        return Path(self.disk_folder) if self.disk_folder else self.data / "kv"

    @property
    def calibration(self) -> Path:
        """The file in which `turnpike calibrate` keeps what it measured."""
        return self.data / "calibration.json"

    @property
    def trials(self) -> Path:
        """The file in which a replica keeps what trials of kernels found."""
        return self.data / "kernel-trials.json"

    @property
    def database(self) -> str:
        """The database URL, the embedded database when none was set."""
        return self.database_url or f"sqlite:///{(self.data / 'turnpike.db').absolute()}"

    @property
    def database_wait(self) -> float:
        """Seconds that a request waits for the database."""
        return self.database_timeout or (_SILENT_S if self.embedded_database is None else _SQLITE_S)

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
    def files(self) -> Path:
        """The folder of files."""
        return Path(self.file_dir) if self.file_dir else self.data / "files"

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
        return [part.strip() for part in self.replicas.split(",") if part.strip()] or self.own_replica_addresses

    @property
    def own_replica_addresses(self) -> list[str]:
        """Where the replicas that `serve` starts listen, one for each model."""
        folder = self.data / "run"
        return [f"unix:{(folder / f'replica-{at}.sock').absolute()}" for at in range(len(self.model_folders))]

    def draft_folder(self, at: int) -> Path | None:
        """The folder with which the replica of the model at this place drafts. Raises SettingError."""
        parts = [part.strip() for part in self.draft_model.split(",")]
        if len(parts) > len(self.model_folders):
            raise SettingError(f"draft_model: {len(parts)} folders for {len(self.model_folders)} models")
        return Path(parts[at]) if at < len(parts) and parts[at] else None

    def of_replica(self, at: int) -> Settings:
        """The settings of a replica that `serve` starts. Journals and caches are each one's own; those of the first lie
        where those of an only one do."""
        if not at:
            return self
        name = f"replica-{at}"
        return msgspec.structs.replace(
            self,
            data_dir=str(self.data / name),
            disk_folder=str(Path(self.disk_folder) / name) if self.disk_folder else "",
            secrets_file=str(self.secrets),
        )

    @property
    def own_replicas(self) -> list[Settings]:
        """The settings of the replicas that `serve` starts, and of those that it has started here before."""
        count = len(self.model_folders)
        while self.of_replica(count).data.is_dir():
            count += 1
        return [self.of_replica(at) for at in range(count)]

    @property
    def aliases(self) -> dict[str, str]:
        """Names that clients may use too → the served models' own. Raises SettingError."""
        named: dict[str, str] = {}
        for part in filter(None, (part.strip() for part in self.model_aliases.split(","))):
            alias, equals, model = (piece.strip() for piece in part.partition("="))
            if not (alias and equals and model):
                raise SettingError(f"model_aliases: {part!r} is not ALIAS=MODEL")
            if alias in named:
                raise SettingError(f"model_aliases: {alias} is given twice")
            named[alias] = model
        return named

    @property
    def allowed_origins(self) -> tuple[str, ...]:
        """The origins whose pages may call the API from a browser. Raises SettingError."""
        origins = tuple(part.strip() for part in self.cors_origins.split(",") if part.strip())
        for origin in origins:
            if origin != "*" and not re.fullmatch(r"https?://[A-Za-z0-9.\-\[\]:]+", origin):
                raise SettingError(f"cors_origins: {origin!r} is not an origin such as https://app.example, nor *")
        return origins

    @property
    def device_costs(self) -> DeviceCosts:
        """What a replica's hardware costs and is able to do."""
        from gateway.fleet.replica_rates import DeviceCosts  # few commands ask

        return DeviceCosts(
            currency=self.cost_currency,
            hour_cost=self.gpu_hour_cost,
            watts=self.gpu_watts,
            power_price=self.power_price,
            devices=self.replica_devices,
            gigabytes=self.device_bandwidth,
            teraflops=self.device_teraflops,
        )

    @property
    def trace_options(self) -> TraceOptions:
        """Which requests are traced, and who is told. Raises SettingError."""
        if self.otlp_endpoint and not re.fullmatch(r"https?://[^\s?#]+", self.otlp_endpoint):
            raise SettingError(f"otlp_endpoint: {self.otlp_endpoint!r} is not an http:// or https:// address")
        try:
            headers = read_headers(self.otlp_headers_file) if self.otlp_headers_file else {}
        except (OSError, ValueError) as error:
            raise SettingError(f"otlp_headers_file: {error}") from error
        return TraceOptions(
            endpoint=self.otlp_endpoint, ratio=self.trace_ratio, slow=self.trace_slow, headers=tuple(headers.items())
        )

    @property
    def own_gateway_name(self) -> str:
        """The name of this gateway in holds, spools and metrics, the same after a restart."""
        return _gateway_name(self.gateway_name)

    def worker_name(self, index: int) -> str:
        """The gateway name of one of several processes. No two are the same, however long the gateway's own is."""
        return _gateway_name(self.gateway_name, f"-{index}")


def _gateway_name(chosen: str, suffix: str = "") -> str:
    name = re.sub(r"[^A-Za-z0-9_-]", "-", chosen or socket.gethostname())
    return name[: _NAME_LENGTH - len(suffix)] + suffix


BY_LANE: Mapping[str, str] = {
    field.name: str(field.default)
    for field in msgspec.structs.fields(Settings)
    if field.name in ("lane_weights", "inter_token_targets") or field.name.endswith(("_lane", "_flow"))
}
"""The settings with a value for each lane, and their defaults."""
