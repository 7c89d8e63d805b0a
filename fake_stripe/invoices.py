"""Invoices with their lines, taxes and payments, and credit notes."""

from __future__ import annotations

from collections import defaultdict

from fake_stripe.account import Account, Object, listed
from fake_stripe.errors import StripeError
from fake_stripe.payments import confirm_intent, new_intent, take_money
from fake_stripe.routes import route, updated

_MOST_LINES, _MOST_FIELDS = 250, 4


@route("POST", "/v1/invoices", "InvoiceCreateParams")
def create_invoice(account: Account, given: Object) -> Object:
    """A draft without lines."""
    customer = account.find("customer", given.get("customer", ""))
    sent = given.get("collection_method") == "send_invoice"
    if not sent and ("days_until_due" in given or "due_date" in given):
        raise StripeError(400, "due dates are for send_invoice only", param="days_until_due")
    if sent and not ("days_until_due" in given or "due_date" in given):
        raise StripeError(400, "send_invoice needs days_until_due or due_date", param="days_until_due")
    fields = given.get("custom_fields") or []
    if len(fields) > _MOST_FIELDS or any(len(one["name"]) > 40 or len(one["value"]) > 140 for one in fields):
        raise StripeError(400, "too many or too long custom fields", param="custom_fields")
    start: Object = {"status": "draft", "lines": [], "metadata": {}, "total_taxes": [], "number": None}
    made = account.add("invoice", "in", **{**start, "currency": "usd", **given, "customer": customer["id"]})
    made["tax_rates"] = {}
    return _shown(account, _counted(made))


def _counted(invoice: Object) -> Object:
    """The sums of a draft by its lines."""
    subtotal = sum(line["amount"] for line in invoice["lines"])
    taxes: defaultdict[str, int] = defaultdict(int)
    for line in invoice["lines"]:
        for tax in line["taxes"]:
            taxes[tax["tax_rate_details"]["tax_rate"]] += tax["amount"]
    total = subtotal + sum(taxes.values())
    each = [{"amount": amount, "tax_rate_details": {"tax_rate": rate}} for rate, amount in taxes.items()]
    invoice.update(subtotal=subtotal, total=total, total_taxes=each, amount_due=max(0, total), amount_paid=0)
    return invoice


def _shown(account: Account, invoice: Object) -> Object:
    """The invoice as answers have it: with the first ten lines, and its payments."""
    lines = {"object": "list", "data": invoice["lines"][:10], "has_more": len(invoice["lines"]) > 10}
    payments = account.every("invoice_payment", invoice=invoice["id"])
    shown = {**invoice, "lines": lines, "payments": {"object": "list", "data": payments, "has_more": False}}
    del shown["tax_rates"]
    return shown


def _emit(account: Account, type_: str, invoice: Object) -> None:
    account.emit(type_, _shown(account, invoice))


def _draft(account: Account, identity: str) -> Object:
    invoice = account.find("invoice", identity)
    if invoice["status"] != "draft":
        raise StripeError(400, "This invoice is no longer editable.", code="invoice_not_editable")
    return invoice


@route("POST", "/v1/invoices/{id}/add_lines", "InvoiceAddLinesParams")
def add_lines(account: Account, given: Object, id: str) -> Object:
    """More lines of a draft."""
    invoice = _draft(account, id)
    if len(invoice["lines"]) + len(given["lines"]) > _MOST_LINES:
        raise StripeError(400, f"An invoice has {_MOST_LINES} lines at most", param="lines")
    made = [_line(account, invoice, line) for line in given["lines"]]
    invoice["lines"] += made
    return _shown(account, _counted(invoice))


def _line(account: Account, invoice: Object, given: Object) -> Object:
    amounts = given.pop("tax_amounts", None) or []
    if amounts and (given.get("tax_rates") or invoice.get("automatic_tax", {}).get("enabled")):
        raise StripeError(400, "tax_amounts exclude tax_rates and automatic tax", param="lines")
    if len(amounts) > 20:
        raise StripeError(400, "A line has 20 tax amounts at most", param="lines")
    period = given.get("period")
    if period and period["end"] < period["start"]:
        raise StripeError(400, "The period ends before it begins", param="lines")
    taxes = []
    for tax in amounts:
        data = tax["tax_rate_data"]
        key = f"{data['display_name']} {data['percentage']} {data.get('country', '')}"
        if key not in invoice["tax_rates"]:
            made = account.add("tax_rate", "txr", **data, active=False)
            invoice["tax_rates"][key] = made["id"]
        details = {"tax_rate": invoice["tax_rates"][key]}
        values = {"amount": tax["amount"], "taxable_amount": tax["taxable_amount"], "tax_rate_details": details}
        taxes.append({**values, "type": "tax_rate_details", "tax_behavior": "exclusive"})
    values = {"invoice": invoice["id"], "currency": invoice["currency"], "metadata": {}, "taxes": taxes}
    return account.add("line_item", "il", **{**values, **given, "subtotal": given.get("amount", 0)})


@route("GET", "/v1/invoices/{id}", "InvoiceRetrieveParams")
def read_invoice(account: Account, given: Object, id: str) -> Object:
    """An invoice."""
    return _shown(account, account.find("invoice", id))


@route("GET", "/v1/invoices/{id}/lines", "InvoiceLineItemListParams")
def list_lines(account: Account, given: Object, id: str) -> Object:
    """An invoice's lines."""
    return listed(account.find("invoice", id)["lines"], given, f"/v1/invoices/{id}/lines")


@route("GET", "/v1/invoices", "InvoiceListParams")
def list_invoices(account: Account, given: Object) -> Object:
    """Invoices, the newest first."""
    names = [name for name in ("customer", "status") if name in given]
    found = account.every("invoice", **{name: given[name] for name in names})
    return listed([_shown(account, one) for one in found], given, "/v1/invoices")


@route("DELETE", "/v1/invoices/{id}", "InvoiceDeleteParams")
def delete_invoice(account: Account, given: Object, id: str) -> Object:
    """Delete a draft."""
    del account.objects[_draft(account, id)["id"]]
    return {"id": id, "object": "invoice", "deleted": True}


@route("POST", "/v1/invoices/{id}/finalize", "InvoiceFinalizeInvoiceParams")
def finalize_invoice(account: Account, given: Object, id: str) -> Object:
    """Make a draft final; with `auto_advance`, charge the customer's card."""
    invoice = _draft(account, id)
    number = invoice["number"] or f"FAKE-{invoice['id']}"
    if any(one["number"] == number and one["status"] != "draft" for one in account.every("invoice")):
        raise StripeError(400, f"The number {number} is taken", code="invoice_number_taken", param="number")
    invoice.update(status="open", number=number, hosted_invoice_url=account.page_of("invoice", id))
    invoice["auto_advance"] = given.get("auto_advance", invoice.get("auto_advance", False))
    _emit(account, "invoice.finalized", invoice)
    if invoice["auto_advance"] and invoice.get("collection_method") == "charge_automatically":
        _charge(account, invoice)
    return _shown(account, invoice)


def _charge(account: Account, invoice: Object) -> None:
    customer = account.find("customer", invoice["customer"])
    method = customer["invoice_settings"]["default_payment_method"]
    if method is None or invoice["amount_due"] == 0:
        return
    values = {"amount": invoice["amount_due"], "currency": invoice["currency"], "customer": customer["id"]}
    intent = new_intent(account, **values, payment_method=method)
    _payment(account, invoice, intent)
    try:
        confirm_intent(account, intent)
    except StripeError:
        _emit(account, "invoice.payment_failed", invoice)


def _payment(account: Account, invoice: Object, intent: Object | None, amount: int | None = None) -> Object:
    amount = invoice["amount_due"] if amount is None else amount
    how = {"type": "payment_intent", "payment_intent": intent["id"]} if intent else {"type": "payment_record"}
    values = {"invoice": invoice["id"], "currency": invoice["currency"], "amount_requested": amount}
    return account.add("invoice_payment", "inpay", status="open", amount_paid=None, payment=how, **values)


def settle_payments(account: Account, intent: Object) -> None:
    """Let the invoice be paid that a payment was for, if it was for one."""
    for payment in account.every("invoice_payment", status="open"):
        if payment["payment"].get("payment_intent") == intent["id"]:
            _paid(account, account.find("invoice", payment["invoice"]), payment)


def _paid(account: Account, invoice: Object, payment: Object) -> None:
    payment.update(status="paid", amount_paid=payment["amount_requested"])
    invoice["amount_paid"] += payment["amount_paid"]
    account.emit("invoice_payment.paid", payment)
    if invoice["status"] == "paid":
        _emit(account, "invoice.overpaid", invoice)
    elif invoice["amount_paid"] >= invoice["amount_due"]:
        invoice["status"] = "paid"
        _emit(account, "invoice.paid", invoice)


def pay_on_page(account: Account, invoice_id: str) -> Object:
    """The customer pays an open invoice on its page."""
    invoice = account.find("invoice", invoice_id)
    values = {"amount": invoice["amount_due"], "currency": invoice["currency"], "customer": invoice["customer"]}
    intent = new_intent(account, **values)
    _payment(account, invoice, intent)
    take_money(account, intent)
    return invoice


@route("POST", "/v1/invoices/{id}/void", "InvoiceVoidInvoiceParams")
def void_invoice(account: Account, given: Object, id: str) -> Object:
    """Void an open invoice."""
    invoice = account.find("invoice", id)
    if invoice["status"] not in ("open", "uncollectible"):
        raise StripeError(400, "Only open invoices can be voided.", code="invoice_not_open")
    invoice["status"] = "void"
    _emit(account, "invoice.voided", invoice)
    return _shown(account, invoice)


@route("GET", "/v1/invoice_payments", "InvoicePaymentListParams")
def list_invoice_payments(account: Account, given: Object) -> Object:
    """Payments of invoices."""
    found = account.every("invoice_payment", **({"invoice": given["invoice"]} if "invoice" in given else {}))
    if "payment" in given:
        intent = given["payment"].get("payment_intent")
        found = [one for one in found if one["payment"].get("payment_intent") == intent]
    return listed(found, given, "/v1/invoice_payments")


@route("GET", "/v1/invoice_payments/{id}", "InvoicePaymentRetrieveParams")
def read_invoice_payment(account: Account, given: Object, id: str) -> Object:
    """A payment of an invoice."""
    return account.find("invoice_payment", id)


@route("POST", "/v1/credit_notes", "CreditNoteCreateParams")
def create_credit_note(account: Account, given: Object) -> Object:
    """A credit note for lines of a final invoice."""
    invoice = account.find("invoice", given["invoice"])
    if invoice["status"] not in ("open", "paid"):
        raise StripeError(400, "Only open and paid invoices can be credited.")
    of = {line["id"]: line for line in invoice["lines"]}
    net = tax = 0
    for line in given.get("lines", []):
        if line.get("invoice_line_item") not in of:
            raise StripeError(400, "No such line", param="lines")
        rates = {one["tax_rate_details"]["tax_rate"] for one in of[line["invoice_line_item"]]["taxes"]}
        net += line.get("amount", 0)
        for amount in line.get("tax_amounts") or []:
            if amount["tax_rate"] not in rates:
                raise StripeError(400, "The tax rate is not one of the line's", param="lines")
            tax += amount["amount"]
    total = net + tax
    outside = sum(given.get(name, 0) for name in ("credit_amount", "refund_amount", "out_of_band_amount"))
    if outside != (total if invoice["status"] == "paid" else 0):
        raise StripeError(400, "The sum of credit, refund and out of band amount must be the total", param="amount")
    credited = sum(one["total"] for one in account.every("credit_note", invoice=invoice["id"]))
    if not 0 < total <= invoice["total"] - credited:
        raise StripeError(400, "The credit note is larger than the invoice", code="amount_too_large")
    rest = {name: given.get(name) for name in ("memo", "effective_at")} | {"metadata": given.get("metadata", {})}
    values = {"invoice": invoice["id"], "customer": invoice["customer"], "currency": invoice["currency"]}
    note = account.add("credit_note", "cn", status="issued", subtotal=net, total=total, **values, **rest)
    if invoice["status"] == "open":
        invoice["amount_due"] -= total
        if invoice["amount_due"] <= invoice["amount_paid"]:
            invoice["status"] = "paid"
    account.emit("credit_note.created", note)
    return note


@route("GET", "/v1/credit_notes", "CreditNoteListParams")
def list_credit_notes(account: Account, given: Object) -> Object:
    """Credit notes, of one invoice or of all."""
    found = account.every("credit_note", **({"invoice": given["invoice"]} if "invoice" in given else {}))
    return listed(found, given, "/v1/credit_notes")


def edit_by_hand(account: Account, invoice_id: str, **values: object) -> Object:
    """What somebody changes in the dashboard."""
    return updated(account, account.find("invoice", invoice_id), dict(values))
