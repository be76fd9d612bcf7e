"""Checks of the model and the port before a vLLM server starts."""

import socket
from pathlib import Path

import pytest

from gumshoe.inference import vllm_server
from gumshoe.inference.vllm_server import ServerOptions, VLLMServer, find_free_ports
from tests.errors import raises


def test_a_missing_model_is_reported_before_the_server_starts(tmp_path: Path) -> None:
    server = VLLMServer(tmp_path / "no-model", log=tmp_path / "server.log")
    with raises("sources.no-such-model-directory", tmp_path / "no-model"), server:
        pass
    assert not (tmp_path / "server.log").exists()


def test_a_used_port_is_reported_before_the_server_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_server, "_PORT_TIMEOUT", 0.2)
    log = tmp_path / "server.log"
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        server = VLLMServer(tmp_path, log=log, options=ServerOptions(port=port))
        with raises("inference.port-in-use", port), server:
            pass
    assert not log.exists()


def test_a_free_port_is_not_ephemeral_and_not_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given_away = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    found = find_free_ports(50)
    assert len(set(found)) == 50
    assert max(found) < int(given_away[0])
    monkeypatch.setattr(vllm_server, "_PORTS", range(found[0], found[0] + 1))
    assert find_free_ports(1) == found[:1]
    with (
        socket.create_server(("127.0.0.1", found[0])),
        raises("inference.no-free-ports", "1 needed", "0 free", found[0]),
    ):
        find_free_ports(1)
