"""A generating request sent again under its idempotency key: it joins the running answer, or gets the kept one."""
