"""Names whose DNS records are the addresses of replicas, as settings write them: `dns:HOST:PORT`."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

import msgspec

from protocol.addresses import AddressError, parse_address

_PREFIX = "dns:"
_LOOKUP_TIMEOUT_S = 5.0


class ServiceName(msgspec.Struct, frozen=True):
    """A host whose A or AAAA records are replicas, which listen on `port`. `text` is how it was written."""

    text: str
    host: str
    port: int


Resolve: TypeAlias = Callable[[ServiceName], Awaitable[Sequence[str]]]
"""Gives the IP addresses of a name. Raises OSError or TimeoutError if there is no answer."""


def parse_service_names(texts: Iterable[str]) -> tuple[list[ServiceName], list[str]]:
    """The names `dns:HOST:PORT` among these texts, and the other texts. Raises AddressError for a malformed name."""
    names, addresses = [], []
    for text in texts:
        if not text.startswith(_PREFIX):
            addresses.append(text)
            continue
        try:
            parsed = parse_address("tcp:" + text.removeprefix(_PREFIX))
            parsed.host.encode("idna")
        except (AddressError, UnicodeError) as error:
            raise AddressError(
                f"{text!r} is not a name of replicas; expected dns:HOST:PORT, such as dns:engines.turnpike.svc:7700"
            ) from error
        names.append(ServiceName(text, parsed.host, parsed.port))
    return names, addresses


def replica_addresses(name: ServiceName, hosts: Iterable[str]) -> set[str]:
    """The replicas' addresses `tcp:IP:PORT` by the IP addresses of a name.

    Of hosts with addresses of both families the IPv4 ones are taken: both would be the same replicas twice.
    """
    parsed = {ipaddress.ip_address(host) for host in hosts}
    chosen = [ip for ip in parsed if ip.version == 4] or parsed
    return {f"tcp:[{ip}]:{name.port}" if ip.version == 6 else f"tcp:{ip}:{name.port}" for ip in chosen}


async def resolve_by_system(name: ServiceName) -> Sequence[str]:
    """Ask the system's resolver for a name. Raises OSError, TimeoutError after 5 s.

    Each lookup has a daemon thread: one that hangs must neither hold back the process's stop, nor take a thread of the
    pool in which files are written.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def tell(hosts: list[str], error: OSError | None) -> None:
        if not answer.done():
            answer.set_exception(error) if error else answer.set_result(hosts)

    def look_up() -> None:
        hosts: list[str] = []
        problem = None
        try:
            hosts = [str(found[4][0]) for found in socket.getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)]
        except OSError as error:
            problem = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, hosts, problem)

    threading.Thread(target=look_up, name="resolve replicas", daemon=True).start()
    async with asyncio.timeout(_LOOKUP_TIMEOUT_S):
        return await answer


async def expand_service_names(texts: Iterable[str], resolve: Resolve = resolve_by_system) -> list[str]:
    """The addresses as they are, and those that the names among them have now; a name without an answer stays as it is,
    for whoever dials to say so. Raises AddressError."""
    names, addresses = parse_service_names(texts)
    for name in names:
        try:
            addresses.extend(sorted(replica_addresses(name, await resolve(name))) or [name.text])
        except (OSError, TimeoutError):
            addresses.append(name.text)
    return addresses
