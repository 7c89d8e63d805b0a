"""Which URLs and addresses webhooks may be sent to: the protection against SSRF (OWASP A10:2021).

A host name is resolved once per attempt, all its addresses are checked, and the connection goes to a checked address,
so that a second DNS answer cannot replace it. An address that is not public, also as an IPv4 address inside IPv6, is
refused unless the operator allowed its network.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

import httpx
import msgspec

from storage.free_text import problem_of_text
from storage.reported_error import ReportedError

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network
Resolve: TypeAlias = Callable[[str, int], Awaitable[list[str]]]
"""(host, port) -> the addresses of the host. Raises OSError."""

MAX_URL = 2000
_LAST_PORT = 65_535
_NUMBERS = re.compile(r"(0x[0-9a-f]*|\d+)(\.(0x[0-9a-f]*|\d+)){0,3}", re.ASCII)
_NAT64 = IPv6Network("64:ff9b::/96")
_RESOLVERS = ThreadPoolExecutor(64, "webhook-resolver")
"""Threads of their own: a name server that does not answer holds one for longer than an attempt may last, and the
event loop's few threads have other work."""
_REFUSED = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "100.64.0.0/10",
        "169.254.0.0/16",
        "192.0.0.0/24",
        "192.88.99.0/24",
        "198.18.0.0/15",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "::/96",
        "64:ff9b:1::/48",
        "100::/64",
        "2001::/23",
        "2002::/16",
        "fc00::/7",
        "fe80::/10",
        "fec0::/10",
        "ff00::/8",
    )
)
"""Refused in addition to Python's `is_global`, whose list depends on its version: shared, link-local (metadata services
of clouds), benchmark, multicast and reserved ranges, and tunnels to IPv4 addresses."""


class UrlRefused(ReportedError, ValueError):
    """Webhooks may not be sent to this URL or address. The message says why."""


def host_of(url: httpx.URL) -> str:
    """The host in ASCII, as it is looked up, asked for in TLS and sent: a name of other letters is in Punycode."""
    return url.raw_host.decode("ascii")


async def system_resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, from the system's resolver."""
    ask = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_RESOLVERS, ask)
    return list(dict.fromkeys(str(address[4][0]) for address in found))


def parse_networks(text: str) -> tuple[Network, ...]:
    """The networks in a text such as `10.0.0.0/8, fd00::/8`. Raises UrlRefused naming what is not a network."""
    networks = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            networks.append(ip_network(part))
        except ValueError as error:
            raise UrlRefused(f"webhook_allow_networks: {part!r} is not a network such as 10.0.0.0/8") from error
    return tuple(networks)


class AddressPolicy(msgspec.Struct, frozen=True):
    """What is allowed beside https to public addresses: `allow_http` for development, `networks` of the operator's own.

    `resolve` is called once for each attempt.
    """

    allow_http: bool = False
    networks: tuple[Network, ...] = ()
    resolve: Resolve = system_resolve

    def check_url(self, text: str) -> httpx.URL:
        """The parsed URL. Its host name is not resolved yet. Raises UrlRefused."""
        if problem := problem_of_text(text, len(text), empty=True):
            raise UrlRefused(problem)
        if len(text) > MAX_URL:
            raise UrlRefused(f"it has more than {MAX_URL} characters")
        try:
            url = httpx.URL(text)
            host_of(url).encode("idna")  # as the resolver does: it refuses empty labels, and those over 63 characters
            readable = url.host
        except (httpx.InvalidURL, TypeError, ValueError) as error:
            raise UrlRefused(f"it is not a URL: {error}") from error
        if url.scheme != "https" and not (self.allow_http and url.scheme == "http"):
            raise UrlRefused("it must begin with https://")
        if not readable:
            raise UrlRefused("it has no host")
        if url.port is not None and not 0 < url.port <= _LAST_PORT:
            raise UrlRefused(f"the port {url.port} is not within 1..{_LAST_PORT}")
        if url.userinfo:
            raise UrlRefused("it must not have a user name or password; the signature says who sends")
        if url.fragment:
            raise UrlRefused("it must not have a fragment")
        literal = _literal(host_of(url))
        if literal is not None:
            self._check(literal)
        elif "." not in host_of(url).rstrip(".") and not self.networks:
            raise UrlRefused(f"{readable} is not a public host name")
        return url

    async def pin(self, url: httpx.URL) -> str:
        """Resolve the host and choose the address to connect to. Raises UrlRefused if any of its addresses is not
        allowed, and OSError."""
        port = url.port or (443 if url.scheme == "https" else 80)
        found = [ip_address(text.partition("%")[0]) for text in await self.resolve(host_of(url), port)]
        if not found:
            raise UrlRefused(f"{host_of(url)} has no address")
        for address in found:
            self._check(address)
        return str(found[0])

    def _check(self, address: Address) -> None:
        effective = _effective(address)
        if any(effective in network for network in self.networks if network.version == effective.version):
            return
        if not is_public(address):
            raise UrlRefused(f"{address} is not a public address")


def is_public(address: Address) -> bool:
    """Whether the address belongs to the public internet and does not lead to another address."""
    effective = _effective(address)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return is_public(effective)
    return (
        effective.is_global
        and not effective.is_multicast
        and not any(effective in network for network in _REFUSED if network.version == effective.version)
    )


def _effective(address: Address) -> Address:
    """The IPv4 address inside an IPv4-mapped or NAT64 address; else the address itself."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def _literal(host: str) -> Address | None:
    """The address of a host that needs no resolver: localhost (RFC 6761), a literal, or 127.1 as inet_aton reads it."""
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return IPv4Address("127.0.0.1")
    try:
        return ip_address(name.partition("%")[0])
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(name)) if _NUMBERS.fullmatch(name) else None
    except OSError:
        return None
