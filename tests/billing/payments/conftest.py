"""A fake Stripe and our side of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from storage.database.database import Database
from tests.billing.payments.desk import PaymentDesk, payment_desk


@pytest.fixture
async def desk(database: Database) -> AsyncIterator[PaymentDesk]:
    async with payment_desk(database) as made:
        yield made
