"""Why a store's folder cannot be used."""

from __future__ import annotations

from storage.reported_error import ReportedError


class StoreUnusable(ReportedError):
    """The folder cannot be made, read or written. The message names it."""


class StoreLocked(StoreUnusable):
    """Another process uses this folder: one folder, one replica."""

    temporary = True
