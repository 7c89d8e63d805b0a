"""The sockets of a gateway: what is no address is refused by the setting's name, and nothing listens by accident."""

from __future__ import annotations

import pytest

from turnpike.processes.listener import listen, listen_for_metrics
from turnpike.settings.settings import SettingError, Settings


@pytest.mark.parametrize(
    "address", ["9090", ":9090", "[]:9090", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", "a..b:0"]
)
def test_metrics_listen_where_their_address_says_and_nowhere_else(address: str) -> None:
    """They ask for no key: a forgotten host must not open them to everybody."""
    with pytest.raises(SettingError, match="metrics_listen"):
        listen_for_metrics(Settings(metrics_listen=address))


def test_metrics_listen_on_one_address() -> None:
    opened = listen_for_metrics(Settings(metrics_listen="127.0.0.1:0"))
    assert opened is not None
    with opened:
        assert opened.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize("host", ["", " "])
def test_an_empty_host_is_not_every_address(host: str) -> None:
    with pytest.raises(SettingError, match=r"host: there is no address; .* 0\.0\.0\.0 or ::"):
        listen(Settings(host=host, port=0))


@pytest.mark.parametrize("host", ["a..b", "a" * 70])
def test_a_host_that_is_none_is_refused(host: str) -> None:
    with pytest.raises(SettingError, match=r"host: .* is not an address of this machine"):
        listen(Settings(host=host, port=0))
