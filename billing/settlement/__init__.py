"""From a gateway's spool to settled events, holds and balances."""
