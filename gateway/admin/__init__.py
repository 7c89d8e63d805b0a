"""The admin API: for operators, tenants' administrators and users who have signed in."""
