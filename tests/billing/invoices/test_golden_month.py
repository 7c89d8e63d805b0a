"""The golden month says to the letter what lies in the tree, on both databases."""

from __future__ import annotations

from billing.audit.checks import check
from billing.invoices.canonical import sha256
from storage.database import Database
from tests.billing.golden import month


async def test_documents_are_those_of_the_tree(database: Database) -> None:
    documents = await month.invoice_month(database)
    made = month.files(documents)
    kept = {path.name: path.read_text() for path in month.FOLDER.iterdir() if path.suffix in (".json", ".txt")}
    assert made.keys() == {name for name in kept if name.startswith(("INV-", "CN-"))}
    for name, text in made.items():
        assert text == kept[name], f"{name}: python -m tests.billing.golden.month"
    assert sha256(documents[0][0]) in documents[1][0]  # each holds the hash of the one before
    assert await check(database) == []
