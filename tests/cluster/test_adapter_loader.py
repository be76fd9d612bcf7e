"""The loader beside a rollout server, between a real store and a server that speaks vLLM's API of adapters."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from gumshoe.artifacts.adapter_layout import ADAPTERS
from gumshoe.artifacts.pruning import remove
from gumshoe.artifacts.store import Store
from gumshoe.cluster.adapter_loader import AdapterLoader, Status
from gumshoe.cluster.adapter_loader_http import pages
from tests.artifacts.fault_proxy import FaultProxy, answer, stall
from tests.cluster.conftest import IMPATIENT, PACE, hand_over, overwrite
from tests.conftest import Ran, free_port
from tests.errors import raises
from tests.inference.fake_vllm import Exchange, FakeVLLM, load_adapter, refuse, reset, status
from tests.waiting import Clock, wait_until


@pytest.fixture
def model() -> Iterator[FakeVLLM]:
    with FakeVLLM(models=("base",)) as server:
        yield server
    assert server.errors == []


@pytest.fixture
def loader(store: Store, model: FakeVLLM, tmp_path: Path) -> Iterator[AdapterLoader]:
    with AdapterLoader(store.uri, model.address, tmp_path / "adapters", PACE) as made:
        yield made


def look_until(loader: AdapterLoader, holds: Callable[[Status], bool]) -> Status:
    """Look until what is found is so, and return it."""
    wait_until(lambda: holds(loader.look()))
    return loader.status


def hang(exchange: Exchange) -> None:
    """Say nothing until the server closes."""
    exchange.pause()
    exchange.drop()


def trickle(exchange: Exchange) -> None:
    """Send a byte at a time until the client leaves or the server closes."""
    exchange.start_reply(200, 1_000_000)
    while not exchange.pause(0.05):
        exchange.send(b" ")


def folders(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir())


def test_the_newest_adapter_is_served_and_the_one_before_it_and_no_other(
    store: Store, model: FakeVLLM, loader: AdapterLoader, tmp_path: Path
) -> None:
    found = loader.look()
    assert (found.serving, found.wanted, found.is_ready, found.error) == (None, None, True, None), "none is there yet"
    handed = [(name, hand_over(store, tmp_path / "made", name)) for name in ("r1-1-policy-0", "r1-1-policy-1")]
    found = loader.look()
    assert (found.serving, found.is_ready) == ("r1-1-policy-1", True), "the newest alone"
    handed += [(name, hand_over(store, tmp_path / "made", name)) for name in ("r1-1-policy-2",)]
    loader.look()
    handed += [(name, hand_over(store, tmp_path / "made", name)) for name in ("r1-2-policy-2",)]
    found = loader.look()
    assert model.loaded == handed[1:]
    places = {name: str(tmp_path / "adapters" / name) for name in ("r1-1-policy-2", "r1-2-policy-2")}
    assert model.roots == places
    assert folders(tmp_path / "adapters") == sorted(places)
    assert (found.serving, found.loads, found.failures) == ("r1-2-policy-2", 3, {})


def test_what_was_restarted_gets_or_has_what_it_is_to_have(
    store: Store, model: FakeVLLM, loader: AdapterLoader, tmp_path: Path
) -> None:
    for name in ("p-1", "p-2"):
        hand_over(store, tmp_path / "made", name)
        loader.look()
    model.roots.clear()  # as vLLM has none when it starts
    assert loader.look().serving == "p-2"
    assert list(model.roots) == ["p-2"]
    with AdapterLoader(store.uri, model.address, tmp_path / "adapters", PACE) as second:
        found = second.look()
        assert (found.serving, found.is_ready, found.loads) == ("p-2", True, 0), "it sees what vLLM has"
        hand_over(store, tmp_path / "made", "p-3")
        hand_over(store, tmp_path / "made", "p-4")
        assert second.look().serving == "p-4"
    assert list(model.roots) == ["p-2", "p-4"]
    assert folders(tmp_path / "adapters") == ["p-2", "p-4"]


def ready(url: str) -> tuple[int, str]:
    answer = httpx.get(f"{url}/readyz", trust_env=False)
    return answer.status_code, answer.text


def other_bytes(store: Store, data: str, scratch: Path) -> None:
    overwrite(store, f"{data}/adapter_model.safetensors", b"p-2\n" * 750, scratch)  # of the same size


def no_file(store: Store, data: str, scratch: Path) -> None:  # noqa: ARG001
    store.storage.delete([f"{data}/adapter_model.safetensors"])


def other_digest(store: Store, data: str, scratch: Path) -> None:  # noqa: ARG001
    manifest = store.manifest(f"{ADAPTERS}/p-2")
    text = manifest.to_json().replace(manifest.files[1].sha256.encode(), b"0" * 64)
    overwrite(store, f"{manifest.reference}/manifest.json", text, scratch)


def no_manifest(store: Store, data: str, scratch: Path) -> None:  # noqa: ARG001
    store.storage.delete([f"{ADAPTERS}/p-2/manifest.json"])


def torn_manifest(store: Store, data: str, scratch: Path) -> None:  # noqa: ARG001
    overwrite(store, f"{ADAPTERS}/p-2/manifest.json", b'{"format": "gumshoe.artifact/1", ', scratch)


@pytest.mark.parametrize("damage", [other_bytes, no_file, other_digest, no_manifest, torn_manifest])
def test_a_corrupted_adapter_is_never_loaded_and_what_is_served_stays(
    store: Store,
    model: FakeVLLM,
    loader: AdapterLoader,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Store, str, Path], None],
) -> None:
    caplog.set_level(logging.INFO, "gumshoe.loader")
    for name in ("p-0", "p-1"):
        hand_over(store, tmp_path / "made", name)
        loader.look()
    hand_over(store, tmp_path / "made", "p-2")
    damage(store, f"{ADAPTERS}/p-2/{store.manifest(f'{ADAPTERS}/p-2').data}", tmp_path)
    found = look_until(loader, lambda found: found.failures.get("corrupt", 0) >= 3)
    assert (found.serving, found.wanted, found.is_ready, found.kind) == ("p-1", "p-2", False, "corrupt")
    assert "p-2" in str(found.error)
    assert list(model.roots) == ["p-0", "p-1"]
    assert "p-2" not in [name for name, _ in model.loaded]
    warned = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warned) == 1, "it is said once"
    with pages(loader, "127.0.0.1", 0) as url:
        shown = httpx.get(f"{url}/metrics", trust_env=False).text
        assert f'gumshoe_adapter_loader_failures_total{{kind="corrupt"}} {found.failures["corrupt"]}\n' in shown
        assert "gumshoe_adapter_loader_ready 0\n" in shown
        assert ready(url) == (200, "ok\n"), "it is found with what it has"
    hand_over(store, tmp_path / "made", "p-3")
    found = loader.look()
    assert (found.serving, found.error) == ("p-3", None), "the next one is not waited for"
    assert list(model.roots) == ["p-1", "p-3"]
    assert folders(tmp_path / "adapters") == ["p-1", "p-3"]


def test_a_corrupted_adapter_that_was_mended_is_loaded(
    store: Store, model: FakeVLLM, loader: AdapterLoader, tmp_path: Path
) -> None:
    weights = hand_over(store, tmp_path / "made", "p-1")
    key = f"{ADAPTERS}/p-1/{store.manifest(f'{ADAPTERS}/p-1').data}/adapter_model.safetensors"
    overwrite(store, key, weights[::-1], tmp_path)
    look_until(loader, lambda found: found.kind == "corrupt")
    overwrite(store, key, weights, tmp_path)
    look_until(loader, lambda found: found.is_ready)
    assert model.loaded == [("p-1", weights)]


@pytest.mark.parametrize("damage", [no_file, torn_manifest])
def test_a_server_without_any_adapter_is_found_once_the_newest_is_known_to_be_damaged(
    store: Store,
    model: FakeVLLM,
    loader: AdapterLoader,
    tmp_path: Path,
    damage: Callable[[Store, str, Path], None],
) -> None:
    """The trainer publishes the adapter that mends it to servers that it finds."""
    hand_over(store, tmp_path / "made", "p-2")
    damage(store, f"{ADAPTERS}/p-2/{store.manifest(f'{ADAPTERS}/p-2').data}", tmp_path)
    healthy = model.health
    with pages(loader, "127.0.0.1", 0) as url:
        assert ready(url) == (503, "waiting to serve what the store has\n"), "nothing is known yet"
        found = loader.look()
        assert (found.serving, found.is_ready, found.kind) == (None, False, "corrupt")
        assert ready(url) == (200, "ok\n")
        loader.look()
        assert ready(url)[0] == 200, "between two tries too"
        model.health = status(503)
        loader.look()
        assert ready(url)[0] == 503
        model.health = healthy
        hand_over(store, tmp_path / "made", "p-3")
        assert loader.look().is_ready
        assert ready(url)[0] == 200


def test_a_server_is_found_where_the_name_of_the_newest_adapter_is_damaged_and_vllm_is_healthy(
    store: Store, model: FakeVLLM, loader: AdapterLoader, tmp_path: Path
) -> None:
    hand_over(store, tmp_path / "made", "p-1")
    overwrite(store, f"{ADAPTERS}/latest.json", b'{"version": ', tmp_path)
    healthy, model.health = model.health, status(503)
    with pages(loader, "127.0.0.1", 0) as url:
        assert loader.look().kind == "corrupt", "that comes first"
        assert ready(url)[0] == 503
        model.health = healthy
        loader.look()
        assert ready(url)[0] == 200


def test_a_server_is_found_with_an_older_adapter_and_not_with_none(model: FakeVLLM, tmp_path: Path) -> None:
    store = Store((tmp_path / "store").as_uri())
    hand_over(store, tmp_path / "made", "p-1")
    with (
        AdapterLoader(store.uri, model.address, tmp_path / "adapters", IMPATIENT) as loader,
        pages(loader, "127.0.0.1", 0) as url,
    ):
        assert look_until(loader, lambda found: found.is_ready).serving == "p-1"
        model.load = hang
        hand_over(store, tmp_path / "made", "p-2")
        found = look_until(loader, lambda found: found.wanted == "p-2" and found.is_healthy)
        assert (found.serving, found.is_ready) == ("p-1", False)
        assert ready(url) == (200, "ok\n")
        model.roots.clear()  # as vLLM has none when it starts
        found = look_until(loader, lambda found: found.serving is None)
        assert ready(url) == (503, f"{found.error}\n")
        model.load = refuse("no room", 400)
        look_until(loader, lambda found: found.kind == "refused")
        assert ready(url) == (200, "ok\n")


@pytest.mark.parametrize("name", ["../evil", "/etc", "a/b"])
def test_a_name_that_is_none_becomes_no_path(
    store: Store, model: FakeVLLM, loader: AdapterLoader, tmp_path: Path, name: str
) -> None:
    hand_over(store, tmp_path / "made", "p-1")
    loader.look()
    overwrite(store, f"{ADAPTERS}/latest.json", json.dumps({"version": name}).encode(), tmp_path)
    found = loader.look()
    assert (found.serving, found.wanted, found.kind) == ("p-1", "p-1", "corrupt")
    assert folders(tmp_path / "adapters") == ["p-1"]
    assert list(model.roots) == ["p-1"]


def test_a_refusal_is_told_in_vllm_s_words_and_a_name_counts_as_loaded_from_the_same_place_alone(
    store: Store, model: FakeVLLM, loader: AdapterLoader, tmp_path: Path
) -> None:
    hand_over(store, tmp_path / "made", "too-high", rank=64)
    found = look_until(loader, lambda found: found.refusals == 2)
    assert (found.kind, found.serving) == ("refused", None)
    assert "LoRA rank 64" in str(found.error)
    assert "max_lora_rank 16" in str(found.error)
    hand_over(store, tmp_path / "made", "p-1")
    model.roots["p-1"] = "/somewhere/else"
    found = loader.look()
    assert (found.kind, found.serving, found.refusals) == ("refused", None, 1)
    assert "already been loaded" in str(found.error)
    assert model.roots["p-1"] == "/somewhere/else", "it is not ours"

    def loaded_and_lost(exchange: Exchange) -> None:
        model.roots["p-2"] = exchange.request["lora_path"]
        refuse("The lora adapter 'p-2' has already been loaded.", 400)(exchange)

    model.load = loaded_and_lost
    hand_over(store, tmp_path / "made", "p-2")
    assert loader.look().serving == "p-2"


@pytest.mark.parametrize("fault", [reset, hang, trickle, status(503), status(500)])
def test_a_server_that_is_away_or_hangs_is_tried_until_it_is_well(
    model: FakeVLLM, tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: Callable[[Exchange], None]
) -> None:
    caplog.set_level(logging.INFO, "gumshoe.loader")
    store = Store((tmp_path / "store").as_uri())
    hand_over(store, tmp_path / "made", "p-1")
    healthy, model.health = model.health, fault
    with AdapterLoader(store.uri, model.address, tmp_path / "adapters", IMPATIENT) as loader:
        for _ in range(3):
            found = loader.look()
            assert (found.kind, found.wanted, found.serving, found.is_ready) == ("server", "p-1", None, False)
        model.health = healthy
        if fault is hang:
            model.load = hang
            look_until(loader, lambda found: "/v1/load_lora_adapter" in str(found.error))
            model.load = load_adapter
        assert look_until(loader, lambda found: found.is_ready).serving == "p-1"
        model.health = fault
        found = loader.look()
        assert (found.serving, found.is_ready) == ("p-1", False)
    changes = [each.levelname for each in caplog.records if "Loaded" not in each.message]
    assert changes == ["WARNING", "INFO", "WARNING"], "each change once"


def test_a_store_that_is_away_slow_or_throttling_is_tried_and_what_is_here_is_served_meanwhile(
    proxy: FaultProxy, s3_bucket: str, aws_environment: pytest.MonkeyPatch, model: FakeVLLM, tmp_path: Path
) -> None:
    store = Store(f"s3://{s3_bucket}/policies")
    hand_over(store, tmp_path / "made", "p-1")
    aws_environment.setenv("AWS_ENDPOINT_URL", proxy.address)
    with AdapterLoader(store.uri, model.address, tmp_path / "adapters", IMPATIENT) as loader:
        proxy.inject(answer(503, "SlowDown"), "GET", times=None)
        found = loader.look()
        assert (found.kind, found.is_ready, found.wanted) == ("store", False, None), "whether there is one is not known"
        proxy.heal()
        look_until(loader, lambda found: found.is_ready)
        proxy.inject(stall, "GET", times=None)
        model.roots.clear()
        found = look_until(loader, lambda found: found.is_ready)
        assert (found.kind, found.serving) == ("store", "p-1"), "loaded again from the disk"
        proxy.heal()
        hand_over(store, tmp_path / "made", "p-2")
        proxy.inject(answer(503, "SlowDown"), "GET", "safetensors", times=None)
        found = look_until(loader, lambda found: found.wanted == "p-2" and found.is_healthy)
        assert (found.kind, found.serving, found.wanted) == ("store", "p-1", "p-2")
        proxy.heal()
        assert look_until(loader, lambda found: found.is_ready).serving == "p-2"


def test_an_adapter_that_was_removed_for_a_newer_one_is_not_said_to_be_corrupted(
    store: Store, model: FakeVLLM, loader: AdapterLoader, tmp_path: Path
) -> None:
    hand_over(store, tmp_path / "made", "p-1")
    model.load = refuse("not now", 503)
    loader.look()
    hand_over(store, tmp_path / "made", "p-2")
    remove(store, store.manifest(f"{ADAPTERS}/p-1"))
    model.load = load_adapter
    found = look_until(loader, lambda found: found.is_ready)
    assert (found.serving, "corrupt" in found.failures) == ("p-2", False)


def test_two_loaders_each_serve_their_own_server(store: Store, model: FakeVLLM, tmp_path: Path) -> None:
    with (
        FakeVLLM(models=("base",)) as other,
        AdapterLoader(store.uri, model.address, tmp_path / "one", PACE) as first,
        AdapterLoader(store.uri, other.address, tmp_path / "two", PACE) as second,
    ):
        for name in ("p-1", "p-2", "p-3"):
            hand_over(store, tmp_path / "made", name)
            assert first.look().serving == second.look().serving == name
        assert list(model.roots) == list(other.roots) == ["p-2", "p-3"]


def test_what_else_lies_in_the_directory_is_left_alone(
    store: Store, model: FakeVLLM, loader: AdapterLoader, tmp_path: Path
) -> None:
    own = tmp_path / "adapters" / "lost+found"
    own.mkdir()
    (tmp_path / "adapters" / "notes").write_text("mine")
    model.models = ("base", "static")  # an adapter that vLLM was started with
    for name in ("p-1", "p-2", "p-3"):
        hand_over(store, tmp_path / "made", name)
        loader.look()
    assert folders(tmp_path / "adapters") == ["lost+found", "notes", "p-2", "p-3"]
    assert list(model.roots) == ["p-2", "p-3"]


def test_the_command_follows_a_store_tells_of_itself_and_ends_at_once(
    run: Callable[..., Ran], model: FakeVLLM, tmp_path: Path
) -> None:
    """It does not wait for vLLM's answer, which would take until the test is over."""
    store, port = Store((tmp_path / "store").as_uri()), free_port()
    words = ["adapter-loader", store.uri, "--server", model.address, "--directory", str(tmp_path / "adapters")]
    words += ["--port", str(port), "--host", "127.0.0.1", "--every", "0.05"]
    log, is_asked = tmp_path / "log", threading.Event()

    def hang_and_tell(exchange: Exchange) -> None:
        is_asked.set()
        hang(exchange)

    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-m", "gumshoe", *words], stderr=output, env={**os.environ})
    try:
        shown = asked_until(process, f"http://127.0.0.1:{port}/readyz", lambda answer: answer.status_code == 200)
        assert shown.text == "ok\n"
        hand_over(store, tmp_path / "made", "p-1")
        status_page = f"http://127.0.0.1:{port}/status"
        found = asked_until(process, status_page, lambda answer: answer.json()["serving"] == "p-1").json()
        assert (found["wanted"], found["error"], found["ready"], found["loads"]) == ("p-1", None, True, 1)
        assert found["since"].endswith("+00:00")
        assert httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False).status_code == 200
        assert "gumshoe_adapter_loader_ready 1\n" in httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
        assert httpx.get(f"http://127.0.0.1:{port}/", trust_env=False).status_code == 404
        ended = run(*words)
        assert (ended.status, ended.code) == (2, "loader.directory-in-use")
        assert str(tmp_path / "adapters") in ended.err
        model.load = hang_and_tell
        hand_over(store, tmp_path / "made", "p-2")
        wait_until(is_asked.is_set, process, log.read_text)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    finally:
        process.kill()
        process.wait()
    assert "Loaded p-1 after" in log.read_text()
    assert "did not answer" not in log.read_text()


def asked_until(
    process: "subprocess.Popen[bytes]", url: str, holds: Callable[[httpx.Response], bool]
) -> httpx.Response:
    """Ask a page of a process until the answer is as it should be, and return it."""
    answers: list[httpx.Response] = []

    def is_so() -> bool:
        with suppress(httpx.TransportError):
            answers.append(httpx.get(url, timeout=None, trust_env=False))
        return bool(answers) and holds(answers[-1])

    wait_until(is_so, process)
    return answers[-1]


def test_a_port_that_is_taken_is_told(loader: AdapterLoader) -> None:
    with (
        pages(loader, "127.0.0.1", 0) as url,
        raises("loader.cannot-listen", url.removeprefix("http://")),
        pages(loader, "127.0.0.1", int(url.rpartition(":")[2])),
    ):
        pass


def test_a_loop_that_hangs_is_not_alive(clock: Clock, loader: AdapterLoader) -> None:
    clock.advance(PACE.longest - 60)
    assert not loader.hangs()
    clock.advance(61)
    assert loader.hangs()
