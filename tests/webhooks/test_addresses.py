"""Webhooks are not sent to addresses that are not public, however written; the checked address is the one called."""

from __future__ import annotations

import asyncio
import datetime
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from tests.webhooks.receiver import Names, receiver, status
from webhooks.addresses import AddressPolicy, UrlRefused, is_public, parse_networks, system_resolve
from webhooks.sending import MAX_ANSWER, WebhookSender

LOCAL = parse_networks("127.0.0.1/32")
KEY = [b"k" * 32]

NOT_PUBLIC = [
    "127.0.0.1", "127.8.9.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254",
    "100.64.0.1", "192.0.0.8", "192.0.2.1", "198.18.0.1", "198.51.100.7", "203.0.113.9", "224.0.0.1", "240.0.0.1",
    "255.255.255.255", "::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1",
    "64:ff9b::127.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "fe80::1", "fc00::1", "fd00:ec2::254", "fec0::1",
    "ff02::1", "2001:db8::1", "2002:7f00:1::", "2002:808:808::", "2001:0:4136:e378::", "100::1",
]  # fmt: skip
PUBLIC = ["8.8.8.8", "1.1.1.1", "172.32.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"]


@pytest.mark.parametrize("text", NOT_PUBLIC)
async def test_not_public(text: str) -> None:
    assert not is_public(ip_address(text))
    with pytest.raises(UrlRefused, match="public"):
        await AddressPolicy(resolve=Names([text])).pin(httpx.URL("https://hook.test/"))
    with pytest.raises(UrlRefused, match="public"):
        AddressPolicy().check_url(f"https://[{text}]/" if ":" in text else f"https://{text}/")


@pytest.mark.parametrize("text", PUBLIC)
async def test_public(text: str) -> None:
    assert is_public(ip_address(text))
    assert await AddressPolicy(resolve=Names([text])).pin(httpx.URL("https://hook.test/")) == str(ip_address(text))


@given(st.integers(0, 2**32 - 1))
def test_a_guise_changes_nothing(number: int) -> None:
    """IPv4-mapped and NAT64 forms are as public as the address inside."""
    plain = IPv4Address(number)
    for network in ("::ffff:0:0", "64:ff9b::"):
        assert is_public(IPv6Address(int(IPv6Address(network)) | number)) == is_public(plain)


async def test_a_name_of_other_letters_is_looked_up_as_it_is_sent() -> None:
    """The resolver's own encoding (IDNA 2003) makes another name of ß than the one in `Host`."""
    asked = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    async with receiver() as right:
        sender = WebhookSender(AddressPolicy(allow_http=True, networks=LOCAL, resolve=resolve))
        assert (await sender.send(f"http://straße.test:{right.port}/", "evt_1", b"{}", KEY)).delivered
        assert right.received[0].headers["host"] == f"xn--strae-oqa.test:{right.port}"
    assert asked == ["xn--strae-oqa.test"]


async def test_one_private_address_among_public_ones_is_enough() -> None:
    with pytest.raises(UrlRefused):
        await AddressPolicy(resolve=Names(["8.8.8.8", "10.0.0.1"])).pin(httpx.URL("https://hook.test/"))
    with pytest.raises(UrlRefused, match="no address"):
        await AddressPolicy(resolve=Names([])).pin(httpx.URL("https://hook.test/"))


async def test_odd_spellings_of_loopback() -> None:
    """The resolver makes 127.0.0.1 of them, and that is what is checked."""
    for host in ("2130706433", "0x7f.1", "127.1", "0177.1", "localhost"):
        with pytest.raises((UrlRefused, OSError)):
            await AddressPolicy(resolve=system_resolve).pin(httpx.URL(f"https://{host}/"))
    odd = ("2130706433", "0x7f.1", "127.1", "0177.1", "localhost", "LOCALHOST.", "a.localhost", "intranet", "10.1")
    for host in odd:
        with pytest.raises(UrlRefused, match="public"):  # before anybody is asked
            AddressPolicy().check_url(f"https://{host}/hook")
    for host in ("localhost", "127.1", "intranet"):
        AddressPolicy(networks=LOCAL).check_url(f"https://{host}/hook")
    for host in ("hook.test", "134744072", "1.1.1.1.hook.test"):
        AddressPolicy().check_url(f"https://{host}/")


async def test_names_are_resolved_beside_the_loops_own_threads() -> None:
    busy = threading.Event()
    threads = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(threads)
    held = asyncio.get_running_loop().run_in_executor(None, busy.wait)
    try:
        assert await asyncio.wait_for(system_resolve("127.0.0.1", 443), 60) == ["127.0.0.1"]
    finally:
        busy.set()
        await held


@pytest.mark.parametrize(
    "text",
    ["", "hook.test", "http://hook.test/", "ftp://hook.test/", "file:///etc/passwd", "https://", "https:///x",
     "https://me:secret@hook.test/", "https://hook.test/#there", "https://hook.test/" + "x" * 2000, "https://[::1/",
     "gopher://hook.test", "javascript:alert(1)",
     "https://hook.test:0/", "https://hook.test:65536/", "https://hook.test:-1/",
     "https://a..hook.test/", "https://.hook.test/", f"https://{'a' * 64}.test/", "https://xn--a.hook.test/"],
)  # fmt: skip
def test_urls_that_are_refused(text: str) -> None:
    with pytest.raises(UrlRefused):
        AddressPolicy().check_url(text)


def test_what_an_operator_allows() -> None:
    allowed = AddressPolicy(allow_http=True, networks=parse_networks("10.0.0.0/8, fd00::/8"))
    for text in (
        "http://hook.test/",
        "https://10.9.9.9/",
        "https://[::ffff:10.0.0.1]/",
        "https://[fd00::1]:8443/a?b=c",
    ):
        allowed.check_url(text)
    for text in ("https://127.0.0.1/", "https://192.168.0.1/"):
        with pytest.raises(UrlRefused):
            allowed.check_url(text)
    with pytest.raises(UrlRefused, match="webhook_allow_networks"):
        parse_networks("10.0.0.0/8, everywhere")


async def test_a_resolver_that_changes_its_answer_is_asked_once() -> None:
    """DNS rebinding: the address that was checked is called, whatever the name means a moment later."""
    async with receiver() as right:
        names = Names(["127.0.0.1"], ["169.254.169.254"])
        sender = WebhookSender(AddressPolicy(allow_http=True, networks=LOCAL, resolve=names))
        outcome = await sender.send(f"http://hook.test:{right.port}/in?a=b", "evt_1", b"{}", KEY)
        assert (outcome.status, outcome.delivered, names.asked) == (204, True, 1)
        (message,) = right.received
        assert (message.path, message.headers["host"]) == ("/in?a=b", f"hook.test:{right.port}")
        again = await sender.send(f"http://hook.test:{right.port}/in", "evt_1", b"{}", KEY)
        assert (again.status, again.delivered, right.connections) == (None, False, 1)
        assert "169.254.169.254 is not a public address" in again.error


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(code: int) -> None:
    async with receiver() as inside, receiver() as hostile:
        where = f"location: http://127.0.0.1:{inside.port}/latest/meta-data/"
        hostile.answer = lambda _: status(code, where)
        sender = WebhookSender(AddressPolicy(allow_http=True, networks=LOCAL))
        outcome = await sender.send(f"http://127.0.0.1:{hostile.port}/", "evt_1", b"{}", KEY)
        assert (outcome.status, outcome.delivered) == (code, False)
        assert "redirects are not followed" in outcome.error
        assert (inside.connections, hostile.connections) == (0, 1)


async def test_answers_are_bounded_in_time_and_size() -> None:
    async with receiver() as endless:
        sender = WebhookSender(AddressPolicy(allow_http=True, networks=LOCAL), timeout_s=1)
        endless.answer = lambda _: None
        hung = await sender.send(f"http://127.0.0.1:{endless.port}/", "evt_1", b"{}", KEY)
        assert (hung.status, hung.error) == (None, "no answer within 1 s")
        head = b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n"
        endless.answer = lambda _: head + b"x" * (3 * MAX_ANSWER)
        large = await sender.send(f"http://127.0.0.1:{endless.port}/", "evt_1", b"{}", KEY)
        assert (large.status, large.delivered) == (200, True)  # its rest is never read
        endless.answer = lambda _: b"not HTTP\r\n\r\n"
        broken = await sender.send(f"http://127.0.0.1:{endless.port}/", "evt_1", b"{}", KEY)
        assert broken.status is None
        assert "Protocol" in broken.error
    refused = await sender.send(f"http://127.0.0.1:{endless.port}/", "evt_1", b"{}", KEY)
    assert "ConnectError" in refused.error


async def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiver() as right, receiver() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        sender = WebhookSender(AddressPolicy(allow_http=True, networks=LOCAL))
        assert (await sender.send(f"http://127.0.0.1:{right.port}/", "evt_1", b"{}", KEY)).delivered
        assert (right.connections, proxy.connections) == (1, 0)


def _certificate(folder: Path, *hosts: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context with a certificate of these hosts, and a client's that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = folder / "cert.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pem)
    client = ssl.create_default_context(cafile=str(pem))
    return server, client


async def test_the_certificate_is_the_names_not_the_address(tmp_path: Path) -> None:
    """TLS goes to the pinned address, asks for the name (SNI), and accepts no certificate of another name."""
    server, client = _certificate(tmp_path, "hook.test")
    async with receiver(server) as right:
        policy = AddressPolicy(networks=LOCAL, resolve=Names(["127.0.0.1"]))
        sender = WebhookSender(policy, client)
        assert (await sender.send(f"https://hook.test:{right.port}/", "evt_1", b"{}", KEY)).delivered
        assert right.names == ["hook.test"]
        for host in ("other.test", "127.0.0.1"):  # the same address, right after: no connection is used again
            wrong = await sender.send(f"https://{host}:{right.port}/", "evt_1", b"{}", KEY)
            assert (wrong.status, "CERTIFICATE_VERIFY_FAILED" in wrong.error) == (None, True)
        assert len(right.received) == 1
