"""FOCUS 1.4 (focus.finops.org): the datasets Cost and Usage, Invoice Detail and Billing Period."""
