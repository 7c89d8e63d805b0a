"""Who changed what: the audit log, which is written in the transaction of each change."""
