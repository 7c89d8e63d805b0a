"""The socket on which a gateway listens: taken before anything is started, so that a port in use is found first."""

from __future__ import annotations

import errno
import socket

from turnpike.settings import SettingError, Settings


def listen(settings: Settings) -> socket.socket:
    """A bound, listening TCP socket. Raises SettingError naming host or port."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise SettingError(f"host: {settings.host!r} is not an address of this machine: {error.strerror}") from error
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise SettingError(
                f"port: {settings.port} on {settings.host} is in use; choose another with --port"
            ) from error
        raise SettingError(f"host, port: cannot listen on {settings.host}:{settings.port}: {error.strerror}") from error
    return listener


def inherited(descriptor: int) -> socket.socket:
    """The listening socket that a parent process passed on."""
    return socket.socket(fileno=descriptor)


def url(listener: socket.socket) -> str:
    """Where a client on this machine reaches the socket."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104  # compared, not bound
        host = "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
