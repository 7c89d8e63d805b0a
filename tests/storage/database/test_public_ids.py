"""Public ids: one form for each kind of object, found again from every form that was ever written."""

from __future__ import annotations

from uuid import UUID

import pytest

from storage.database.public_ids import PREFIXES, forms_of, prefixed_id, public_id, with_public_ids

ID = UUID("01934f6e-0d2a-7b3c-8e51-a9c4d7f60b12")


def test_a_kind_has_its_prefix_and_others_are_plain() -> None:
    assert public_id("tenant", ID) == f"tenant_{ID.hex}"
    assert public_id("usage_event", ID) == public_id("request", ID) == f"req_{ID.hex}"
    assert public_id("grant", ID) == str(ID)
    for prefix in PREFIXES.values():
        assert prefixed_id(f"{prefix}{ID.hex}", prefix) == ID
        assert prefixed_id(str(ID), prefix) is None
        assert prefixed_id(f"{prefix}x", prefix) is None


@pytest.mark.parametrize("given", [str(ID), ID.hex, f"project_{ID.hex}", f"req_{ID.hex}"])
def test_an_id_is_looked_for_in_every_form(given: str) -> None:
    forms = forms_of(given)
    assert {given, str(ID), f"tenant_{ID.hex}", f"project_{ID.hex}", f"budget_{ID.hex}"} <= set(forms)


@pytest.mark.parametrize("given", ["", "_", "default", "2026-0007", "k7WmXq2ZpR4t", "tenant_", f"{ID.hex}_7"])
def test_what_is_no_id_stays_as_it_is(given: str) -> None:
    assert forms_of(given) == [given]


def test_fields_of_ids_get_the_public_form() -> None:
    said = {"project_id": str(ID), "id": str(ID), "deeper": [{"invoice_id": ID.hex}], "user_id": None, "budget_id": "x"}
    assert with_public_ids(said) == {
        "project_id": f"project_{ID.hex}",
        "id": str(ID),
        "deeper": [{"invoice_id": f"invoice_{ID.hex}"}],
        "user_id": None,
        "budget_id": "x",
    }
