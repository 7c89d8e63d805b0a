"""The customers' webhook endpoints of the past, and the exports that they ordered.

The messages are sent by the worker's own dispatcher; what answers is here, since nobody listens at these addresses.
"""

from __future__ import annotations

from collections.abc import Sequence

from billing.exports.jobs import ExportJobs
from storage.database import clock
from turnpike.admin_services import AdminServices
from turnpike.demonstration.cast import NORDLICHT, QUILLSTONE
from turnpike.demonstration.past import MINUTE, Past
from turnpike.demonstration.people import Population, payer_name
from turnpike.processes.worker import webhook_dispatcher
from turnpike.settings.data_folder import read_secrets
from webhooks.addresses import AddressPolicy
from webhooks.dispatch import Dispatcher
from webhooks.sending import SendResult, WebhookSender

_ACCOUNTING, _OLD, _ALERTS = (
    "https://hooks.nordlicht.example/turnpike",
    "https://old.nordlicht.example/billing",
    "https://alerts.quillstone.example/hooks/turnpike",
)
_EXPORTS = (
    (NORDLICHT, "editorial", "editor plug-in", "usage", "csv"),
    (NORDLICHT, "editorial", "editor plug-in", "invoices", "csv"),
    (NORDLICHT, "editorial", "editor plug-in", "costs", "xlsx"),
    (QUILLSTONE, "support-agent", "live chat", "usage", "jsonl"),
    (QUILLSTONE, "support-agent", "live chat", "focus", "csv"),
)
"""Whose, by which key, what, and in which format."""


class PastEndpoints(WebhookSender):
    """Answers as the endpoints of the past did: one well, one with an outage now and then, one that is gone."""

    def __init__(self) -> None:
        super().__init__(AddressPolicy())
        self._asked = 0

    async def send(self, url: str, event: str, body: bytes, keys: Sequence[bytes]) -> SendResult:
        """The answer of the endpoint at this URL."""
        self._asked += 1
        took = 40 + (self._asked * 37) % 210
        if url == _OLD:
            return SendResult(410, "answered 410", took)
        if url == _ALERTS and (clock.instant() // MINUTE) % 5 == 0:
            return SendResult(503, "answered 503", took)
        return SendResult(200, "", took)


def past_dispatcher(admin: AdminServices) -> Dispatcher:
    """The worker's dispatcher, with the endpoints of the past."""
    keys = read_secrets(admin.settings)
    return webhook_dispatcher(admin.settings, admin.tenancy, admin.database, keys, PastEndpoints())


async def add_endpoints(admin: AdminServices, population: Population) -> None:
    """Three endpoints of two customers."""
    endpoints = admin.webhooks
    nordlicht, quillstone = population.tenants[NORDLICHT.name], population.tenants[QUILLSTONE.name]
    with population.acting(NORDLICHT.people[1].email):
        await endpoints.add(nordlicht, _ACCOUNTING, ["invoice.*", "credit_note.*"], "accounting")
        await endpoints.add(nordlicht, _OLD, ["invoice.*"], "the former accounting")
    with population.acting(QUILLSTONE.people[0].email):
        await endpoints.add(quillstone, _ALERTS, ["*"], "alerts of the platform team")


async def order_exports(admin: AdminServices, population: Population, past: Past, period: str) -> None:
    """Exports of a month, made as the worker makes them."""
    jobs = ExportJobs(admin.database, admin.prices, admin.settings.exports)
    for customer, project, key, dataset, form in _EXPORTS:
        payer = population.payers[payer_name(customer, project, key)]
        with population.acting(customer.people[0].email):
            await jobs.queue(payer.tenant_id, payer.key_id, dataset, period, form)
        past.move_to(past.now + MINUTE // 2)
        while await jobs.run_next(admin.display_names):
            pass
