"""The sockets on which a gateway listens, opened before anything is started so that a port in use is found first."""

from __future__ import annotations

import errno
import ipaddress
import socket

from turnpike.settings.settings import SettingError, Settings

_LAST_PORT = 65_535


def listen(settings: Settings) -> socket.socket:
    """A bound, listening TCP socket. Raises SettingError naming host or port."""
    return _listen(settings.host, settings.port, host_setting="host", port_setting="port")


def listen_for_metrics(settings: Settings) -> socket.socket | None:
    """The socket of `--metrics-listen`, None without it. Raises SettingError."""
    address = settings.metrics_listen
    if not address:
        return None
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdecimal()) or int(port) > _LAST_PORT:
        raise SettingError(f"metrics_listen: {address!r} is not HOST:PORT")
    return _listen(host, int(port), host_setting="metrics_listen", port_setting="metrics_listen")


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to this host name or address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int, *, host_setting: str, port_setting: str) -> socket.socket:
    if not host.strip():  # it would mean all of this machine's addresses
        raise SettingError(f"{host_setting}: there is no address; all of this machine's are written as 0.0.0.0 or ::")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:  # the latter of labels that no name can have, as in a..b
        cause = error.strerror if isinstance(error, OSError) else "it is no host name"
        raise SettingError(f"{host_setting}: {host!r} is not an address of this machine: {cause}") from error
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise SettingError(
                f"{port_setting}: {port} on {host} is in use; choose another with --{port_setting.replace('_', '-')}"
            ) from error
        names = ", ".join(dict.fromkeys((host_setting, port_setting)))
        raise SettingError(f"{names}: cannot listen on {host}:{port}: {error.strerror}") from error
    return listener


def inherited(descriptor: int) -> socket.socket:
    """The listening socket that a parent process passed on."""
    return socket.socket(fileno=descriptor)


def url(listener: socket.socket) -> str:
    """The URL at which a client on this machine reaches the socket."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104  # compared, not bound
        host = "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
