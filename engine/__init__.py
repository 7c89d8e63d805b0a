"""One replica: a served model on one or more devices. Knows tokens; never tenants, money or HTTP."""
