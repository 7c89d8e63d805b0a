"""That rows say what they said when they were written: a hash chain over events, seals over the rest."""
