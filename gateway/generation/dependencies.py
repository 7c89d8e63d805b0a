"""What a request's task works with, from admission to its recorded usage: one set for all requests of a gateway."""

from __future__ import annotations

from msgspec import Struct

from billing.receipts.answer_receipts import ReceiptIssuer
from billing.service_levels.service_hours import ServiceHours
from gateway.admission.admission import Admission
from gateway.admission.lease_confirmations import LeaseConfirmations
from gateway.fleet.fleet import Fleet
from gateway.generation.leased_blocks import LeasedBlocks
from gateway.generation.request_history import RequestHistory
from gateway.generation.shared_writes import SharedWrites
from gateway.metering.usage_recorder import RefusedEntries, UsageRecorder
from gateway.metrics.gateway_metrics import GatewayMetrics
from gateway.recovery.lost_attempts import LostAttempts
from prompt_cache.promise.cache_domains import CacheDomains
from storage.disk_space import DiskWatch
from tracing.exporter import Traces
from waterfall.writer import WaterfallWriter


class GenerationDependencies(Struct, frozen=True):
    """What a task works with."""

    admission: Admission
    fleet: Fleet
    domains: CacheDomains
    recorder: UsageRecorder
    attempts: LostAttempts
    refused: RefusedEntries
    metrics: GatewayMetrics
    disk: DiskWatch
    writes: SharedWrites
    blocks: LeasedBlocks
    history: RequestHistory | None = None
    service: ServiceHours | None = None
    promises: LeaseConfirmations | None = None
    waterfalls: WaterfallWriter | None = None
    receipts: ReceiptIssuer | None = None
    traces: Traces | None = None
