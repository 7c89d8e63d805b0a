"""The worker's jobs, which no request waits for. Each is repeated for ever, whatever becomes of the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from uuid import UUID

import httpx
import msgspec
import structlog

from audit_log.actors import Actor, become
from audit_log.anchors import anchor_chains, latest_witness
from batch_store.store import BatchStore
from billing.events import partitions
from billing.exports.jobs import ExportJobs
from billing.exports.journal import parse_account_codes
from billing.integrity.seal_checkpoints import write_checkpoint
from billing.invoices.accounting.deferral import earn_lapsed_commitments
from billing.payments.dunning.letters import load_letters
from billing.payments.dunning.mail import MailServer, problem_of_recipient
from billing.payments.dunning.sending import DunningWorker
from billing.payments.inbox import PaymentInbox
from billing.payments.jobs import PaymentJobs
from billing.payments.provider import ProviderRefused, ProviderUnavailable
from billing.payments.reconciliation import Reconciler
from billing.payments.worker import PaymentWorker
from billing.periods.periods import Periods
from billing.receipts.day_files import close_due_days
from billing.retention import BATCH, forget_charges, forget_holds, forget_windows
from billing.service_levels.service_hours import forget_old as forget_service_hours
from billing.transaction.budget_charges import name_budget_subjects
from file_store.blobs import FolderBlobs
from file_store.store import FORGOTTEN as FORGOTTEN_FILES
from file_store.store import FileStore
from file_store.uploads import UploadStore
from prompt_cache.history.store import History
from prompt_cache.promise.lease_storage import LeaseStorage
from prompt_cache.promise.scope_keys import ScopeKeys
from response_store.idempotency import forget_expired_claims
from response_store.store import FORGOTTEN, forget_expired
from storage.backoff import Backoff
from storage.database.database import JOB_STATEMENT_S, Database, DatabaseUnavailable, StatementTimeout
from tenancy.directory import Directory, project_public_id
from tenancy.repositories import Tenancy
from turnpike.admin_services import AdminServices, address_policy
from turnpike.processes.adapter_upkeep import AdapterUpkeep
from turnpike.processes.lease_upkeep import LeaseUpkeep
from turnpike.processes.registers import ask
from turnpike.settings.data_folder import read_secrets
from turnpike.settings.secrets import Secrets
from turnpike.settings.settings import SettingError, Settings
from waterfall.refused_requests import RefusedRequestStore
from waterfall.store import WaterfallStore
from webhooks.dispatch import REMOVAL_BATCH, Dispatcher
from webhooks.sending import WebhookSender
from webhooks.signing import SecretCipher

_DAY_S = 86_400
_PAYMENTS_KEPT_S = 90 * _DAY_S
"""How long ended jobs and events of payments are kept: longer than a provider lists its events."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 15.0
"""The pauses after failures in a row, however seldom the job is done."""

logger = structlog.get_logger(__name__)


class Job(msgspec.Struct, frozen=True):
    """What is repeated after `every_s` seconds; at once when `run` returns that there is more to do."""

    name: str
    every_s: float
    run: Callable[[], Awaitable[bool]]


class Outage:
    """Whether the database is away, with one line of log for all jobs when it goes and one when it is back."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._waiting: set[str] = set()

    @property
    def problem(self) -> str:
        """What keeps the jobs waiting; empty if nothing does."""
        return "" if self._since is None else "the database is away; the worker's jobs wait"

    def job_failed(self, job: str, error: DatabaseUnavailable) -> None:
        """Record that a job could not reach the database."""
        if self._since is None:
            self._since = time.monotonic()
            logger.warning("the database is away; the worker's jobs wait", job=job, cause=str(error))
        self._waiting.add(job)

    def job_done(self, job: str) -> None:
        """Record that a job came to its end; the outage is over when all that failed have."""
        self._waiting.discard(job)
        if self._since is not None and not self._waiting:
            logger.info("the database is back; the worker's jobs go on", away_s=round(time.monotonic() - self._since))
            self._since = None


async def repeat_jobs(all_jobs: Sequence[Job], outage: Outage | None = None) -> None:
    """Repeat these jobs for ever, each at its own pace, whatever becomes of the others; `outage` knows whether the
    database is away."""
    outage = outage or Outage()
    async with asyncio.TaskGroup() as group:
        for job in all_jobs:
            group.create_task(_repeat(job, outage))


async def _repeat(job: Job, outage: Outage) -> None:
    become(Actor("system", f"worker/{job.name}", "turnpike worker"))
    backoff = Backoff(min(job.every_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
    while True:
        more = False
        try:
            more = await job.run()
        except StatementTimeout as error:
            logger.error("a statement of a job took too long, trying again", job=job.name, cause=str(error))
            await backoff.wait()
            continue
        except DatabaseUnavailable as error:
            outage.job_failed(job.name, error)
            await backoff.wait()
            continue
        except Exception:
            logger.exception("a job of the worker failed, trying again", job=job.name)
            await backoff.wait()
            continue
        outage.job_done(job.name)
        backoff.reset()
        if not more:
            await asyncio.sleep(job.every_s)


@asynccontextmanager
async def job_database(admin: AdminServices) -> AsyncIterator[Database]:
    """The same database for jobs that nobody waits for, whose statements grow with what was recorded. They have a bound
    of their own, and connections of their own. SQLite, where no statement has a bound, needs no second one."""
    if admin.database.dialect == "sqlite":
        yield admin.database
        return
    database = await Database.open(admin.settings.database, pool_size=3, statement_s=JOB_STATEMENT_S)
    database.keyring, database.clock = admin.database.keyring, admin.database.clock
    try:
        yield database
    finally:
        await database.close()


def jobs(admin: AdminServices, database: Database) -> list[Job]:
    """Expire holds and grants, prepare partitions, close periods, make exports, send webhooks, keep leases, record how
    long adapters were ready, remove old rows, anchor the audit log, close days of receipts. Raises InvalidExport,
    UrlRefused and SecretsError for settings that are wrong.

    `database`: of `job_database`. What others wait for while it is done, as when a period closes, does not use it.
    """
    settings, adapters = admin.settings, AdapterUpkeep(admin.database, admin.prices)
    periods = Periods(admin.database, LeaseStorage(admin.database), adapters.residency)
    exports = ExportJobs(database, admin.prices, settings.exports)
    dispatcher = webhook_dispatcher(settings, admin.tenancy, admin.database, read_secrets(settings))
    codes = parse_account_codes(settings.account_codes)
    files = file_store(settings, database)

    async def sweep() -> bool:
        await partitions.prepare(admin.database)
        if expired := await admin.holds.sweep():
            logger.warning("holds expired without any usage", holds=expired)
        if expired := await admin.balances.expire():
            logger.info("money expired unused", tenants=expired)
        if lapsed := await earn_lapsed_commitments(admin.database):
            logger.info("commitments ended", commitments=lapsed)
        for closed in await periods.close_due(settings.period_grace):
            logger.info("a billing period is closed", period=closed.period)
        return False

    async def export() -> bool:
        return await exports.run_next(admin.display_names, codes, settings.provider_name)

    async def clean() -> bool:
        if removed := await exports.remove_old(settings.export_keep_days * _DAY_S):
            logger.info("old exports are removed", exports=removed)
        removed = await dispatcher.remove_old(settings.webhook_keep_days * _DAY_S)
        holds = await forget_holds(database, settings.hold_keep_days * _DAY_S)
        charges = await forget_charges(database, settings.budget_keep_days * _DAY_S)
        windows = await forget_windows(database, settings.budget_keep_days * _DAY_S)
        history = await History(database).forget_old()
        served = await forget_service_hours(database)
        users = await admin.users.forget_old()
        responses = await forget_expired(database)
        claims = await forget_expired_claims(database)
        content = {
            "files": await files.forget(),
            "uploads": await UploadStore(files).forget(),
            "batches": await BatchStore(files).forget(),
        }
        waterfall_store = WaterfallStore(database, settings.waterfall_keep_days * _DAY_S)
        waterfalls = await waterfall_store.forget_old()
        refused = await RefusedRequestStore(database, settings.waterfall_keep_days * _DAY_S).forget_old()
        gone = {"webhooks": removed, "holds": holds, "charges": charges, "windows": windows, "history": history}
        gone |= {"served": served, "users": users, "responses": responses, "waterfalls": waterfalls}
        gone |= {"refused_requests": refused, "idempotency_claims": claims, **content}
        if waterfalls < BATCH:  # what is too old is gone: the rest is shared
            gone["waterfalls"] += await waterfall_store.forget_beyond()
        if any(gone.values()):
            logger.info("old rows are forgotten", **gone)
        at_most = max(holds, charges, windows, history, served, waterfalls, refused)
        return (
            removed >= REMOVAL_BATCH
            or at_most >= BATCH
            or max(responses, claims) >= FORGOTTEN
            or max(content["files"], content["uploads"]) >= FORGOTTEN_FILES
        )

    async def receipts() -> bool:
        return await close_due_days(database)

    async def anchor() -> bool:
        if anchored := await anchor_chains(database):
            witness = await latest_witness(database)
            logger.info("the audit log is anchored", chains=anchored, witness=witness and witness.text)
        if number := await write_checkpoint(database):
            logger.info("seals have a checkpoint", number=number, key=database.keyring.current)
        return False

    async def ask_registers() -> bool:
        async with httpx.AsyncClient(trust_env=False, follow_redirects=False) as client:
            return await ask(database, client, vies_url=settings.vies_url, ecb_url=settings.ecb_url)

    return [
        *payment_jobs(admin, database),
        *dunning_jobs(admin),
        Job("sweep", 30.0, sweep),
        Job("export", 2.0, export),
        Job("webhooks", 1.0, dispatcher.run),
        Job("leases", 5.0, LeaseUpkeep(admin.database, admin.holds, admin.prices).run),
        Job("adapters", 60.0, adapters.run),
        Job("clean", 3600.0, clean),
        Job("anchor", 3600.0, anchor),
        Job("receipts", 300.0, receipts),
        *([Job("registers", 3600.0, ask_registers)] if settings.vies_url or settings.ecb_url else []),
    ]


def file_store(settings: Settings, database: Database) -> FileStore:
    """The files that the worker cleans up."""
    keys = ScopeKeys(database, read_secrets(settings).master_key)
    return FileStore(database, keys, FolderBlobs(settings.files), settings.file_quota)


def payment_jobs(admin: AdminServices, database: Database) -> list[Job]:
    """Push invoices, charge cards, follow what the payment provider tells; none without one. Raises
    CredentialsError."""
    provider = admin.payments
    if provider is None:
        return []
    worker, reconciler = PaymentWorker(admin.database, provider), Reconciler(database)

    async def reconcile() -> bool:
        try:
            run = await reconciler.run_if_due(provider)
        except (ProviderUnavailable, ProviderRefused) as error:
            logger.warning("payments could not be reconciled, trying again", cause=str(error))
            return False
        if run is not None:
            counted = {"payments": run.payments, "invoices": run.invoices, "missed_events": run.missed}
            logger.info("payments are reconciled", differences=len(run.differences), **counted)
        await PaymentJobs(database).forget(_PAYMENTS_KEPT_S)
        await PaymentInbox(database).forget(_PAYMENTS_KEPT_S)
        return False

    return [Job("payments", 2.0, worker.run), Job("payment reconciliation", 600.0, reconcile)]


def _only_address(admin: AdminServices) -> str:
    """Where all mail of a sandbox goes; empty where this is none. Raises SettingError for a sandbox without it."""
    provider, address = admin.payments, admin.settings.sandbox_mail
    if not admin.is_sandbox and (provider is None or provider.livemode):
        return ""
    why = "its time is moved by hand" if admin.is_sandbox else "the key in stripe_file is one of test mode"
    if not address:
        raise SettingError(
            f"sandbox_mail: this installation is a sandbox ({why}), so its reminders go to no buyer: say one address "
            "of yours that all of them go to, or leave smtp_host empty"
        )
    if problem := problem_of_recipient(address):
        raise SettingError(f"sandbox_mail: {problem}")
    return address


def dunning_jobs(admin: AdminServices) -> list[Job]:
    """Remind of invoices that are overdue; none without a mail server. Raises SettingError, InvalidLetter."""
    settings = admin.settings
    days, letters = settings.reminder_levels, load_letters(settings.reminder_folder)
    if not settings.smtp_host or not days:
        return []
    if "@" not in settings.mail_from:
        raise SettingError("mail_from: reminders need a sender, such as billing@example.com")
    server = MailServer(
        host=settings.smtp_host,
        port=settings.smtp_port,
        encryption=settings.smtp_encryption,
        user=settings.smtp_user,
        password_file=settings.smtp_password_file,
        sender=settings.mail_from,
    )

    async def name_of(tenant_id: UUID) -> str:
        return (await Directory(admin.database).tenant_names([tenant_id]))[tenant_id]

    worker = DunningWorker(
        admin.database, server, letters, days, console=settings.console_url, names=name_of, only_to=_only_address(admin)
    )
    return [Job("reminders", 600.0, worker.run)]


def webhook_dispatcher(
    settings: Settings, tenancy: Tenancy, database: Database, keys: Secrets, sender: WebhookSender | None = None
) -> Dispatcher:
    """What sends webhooks, in a worker; `sender`: by another way than HTTP. Raises UrlRefused for a malformed network
    in the settings."""

    async def names(tenant_id: UUID) -> dict[str, tuple[str, str]]:
        projects = await tenancy.list_projects(tenant_id)
        shown = {str(project.id): (project_public_id(project.id), project.name) for project in projects}
        return shown | {str(key.id): (key.public_id, key.public_id) for key in await tenancy.list_keys(tenant_id)}

    cipher, sender = SecretCipher(keys.master_key), sender or WebhookSender(address_policy(settings))
    payloads = partial(name_budget_subjects, names_of=names)
    return Dispatcher(database, cipher, sender, settings.webhook_give_up_days * _DAY_S, payloads)
