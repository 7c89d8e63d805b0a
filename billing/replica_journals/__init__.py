"""Replicas' journals: which may know of an epoch, what they say against the events, the end of a lost one."""
