"""The socket on which a replica listens. The socket of a dead process is removed; that of a live one is not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

from engine.errors import StartError
from protocol.addresses import Address, AddressError, parse_address

Connected = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def listening_address(text: str) -> Address:
    """Parse an address from the settings. Raises StartError."""
    try:
        return parse_address(text)
    except AddressError as error:
        raise StartError(f"listen: {error}") from error


async def listen(text: str, connected: Connected) -> asyncio.Server:
    """Serve each connection to this address with `connected`. Only its owner may use a Unix socket. Raises
    StartError."""
    address = listening_address(text)
    try:
        if address.path is None:
            return await asyncio.start_server(connected, address.host, address.port)
        await _free_socket(address.path)
        mask = os.umask(0o077)
        try:
            return await asyncio.start_unix_server(connected, address.path)
        finally:
            os.umask(mask)
    except OSError as error:
        raise StartError(f"listen: {text} cannot be used: {error.strerror or error}") from error


def remove_socket(text: str) -> None:
    """Remove the Unix socket of this address, if it is one."""
    address = listening_address(text)
    if address.path is not None:
        Path(address.path).unlink(missing_ok=True)


async def _free_socket(path: str) -> None:
    """Remove the socket of a dead process. Raises StartError if a live process listens on it."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise StartError(f"listen: {path} is there and not a socket")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(path)
            except OSError:
                os.unlink(path)
            else:
                raise StartError(f"listen: unix:{path} is in use by another process")
