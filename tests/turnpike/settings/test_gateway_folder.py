"""A data folder is one gateway's; gateways that share one take each their own part of it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from turnpike.settings.data_folder import DataFolderError, gateway_folder
from turnpike.settings.settings import Settings


def test_a_second_gateway_in_one_folder_is_refused(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path))
    with gateway_folder(settings) as first:
        with pytest.raises(DataFolderError, match="another gateway uses"), gateway_folder(settings):
            pass
        name = first.own_gateway_name
    with gateway_folder(settings) as again:
        assert again.own_gateway_name == name, "the same after a restart"


def test_default_names_differ_on_one_host(tmp_path: Path) -> None:
    folders = [Settings(data_dir=str(tmp_path / name)) for name in "ab"]
    with gateway_folder(folders[0]) as first, gateway_folder(folders[1]) as second:
        assert first.own_gateway_name != second.own_gateway_name
        host = socket.gethostname().replace(".", "-")
        assert first.own_gateway_name.startswith(host[:20])
        assert first.worker_name(0) != second.worker_name(0)


def test_gateways_that_share_a_folder_have_each_their_own(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path), shared_data_dir=True)
    with gateway_folder(settings) as first:
        with gateway_folder(settings) as second:
            assert (first.data, second.data) == (tmp_path / "gateway-0", tmp_path / "gateway-1")
            assert first.own_gateway_name != second.own_gateway_name
            assert not second.shared_data_dir, "its workers use the same folder"
        with gateway_folder(settings) as third:
            assert third.data == tmp_path / "gateway-1"
            assert third.own_gateway_name == second.own_gateway_name


def test_a_name_that_was_given_is_kept(tmp_path: Path) -> None:
    with gateway_folder(Settings(data_dir=str(tmp_path), gateway_name="mine")) as own:
        assert own.own_gateway_name == "mine"
