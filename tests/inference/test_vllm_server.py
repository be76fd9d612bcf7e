"""Checks before a vLLM server starts: its model and its port."""

import socket
from pathlib import Path

import pytest

from gumshoe.inference import vllm_server
from gumshoe.inference.vllm_server import ServerOptions, VLLMServer, free_ports
from tests.errors import raises


def test_a_model_that_is_not_there_is_told_of_before_anything_is_started(tmp_path: Path) -> None:
    server = VLLMServer(tmp_path / "no-model", log=tmp_path / "server.log")
    with raises("sources.no-such-model-directory", tmp_path / "no-model"), server:
        pass
    assert not (tmp_path / "server.log").exists()


def test_a_port_that_another_program_has_is_told_of_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_server, "_PORT_PATIENCE", 0.2)
    log = tmp_path / "server.log"
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        server = VLLMServer(tmp_path, log=log, options=ServerOptions(port=port))
        with raises("inference.port-in-use", port), server:
            pass
    assert not log.exists()


def test_a_free_port_is_none_that_the_system_gives_away_nor_one_that_is_listened_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given_away = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    found = free_ports(50)
    assert len(set(found)) == 50
    assert max(found) < int(given_away[0])
    monkeypatch.setattr(vllm_server, "_PORTS", range(found[0], found[0] + 1))
    assert free_ports(1) == found[:1]
    with (
        socket.create_server(("127.0.0.1", found[0])),
        raises("inference.no-free-ports", "1 needed", "0 free", found[0]),
    ):
        free_ports(1)
