"""Test the adapter loader with a real store and a fake vLLM server."""

import json
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from gumshoe.artifacts.adapter_layout import ADAPTERS
from gumshoe.artifacts.pruning import remove_artifact
from gumshoe.artifacts.store import Store
from gumshoe.cluster.adapter_loader import AdapterLoader, Status
from gumshoe.cluster.adapter_loader_http import serve_status
from tests.artifacts.fault_proxy import FaultProxy, answer, stall
from tests.cluster.conftest import IMPATIENT, PACE, overwrite, publish_adapter
from tests.conftest import CommandResult, find_free_port
from tests.errors import raises
from tests.inference.fake_vllm import Exchange, FakeVLLM, load_adapter, refuse, reset, status
from tests.waiting import Clock, wait_until
from tests.warm_processes import Process, start_gumshoe


@pytest.fixture
def model() -> Iterator[FakeVLLM]:
    with FakeVLLM(models=("base",)) as server:
        yield server
    assert server.errors == []


@pytest.fixture
def loader(store: Store, model: FakeVLLM, tmp_path: Path) -> Iterator[AdapterLoader]:
    with AdapterLoader(store.uri, model.address, tmp_path / "adapters", PACE) as made:
        yield made


def reconcile_until(loader: AdapterLoader, holds: Callable[[Status], bool]) -> Status:
    """Reconcile until the status is as expected, and return it."""
    wait_until(lambda: holds(loader.reconcile()))
    return loader.status


def hang(exchange: Exchange) -> None:
    """Send nothing until the server closes."""
    exchange.pause()
    exchange.drop()


def trickle(exchange: Exchange) -> None:
    """Send one byte at a time until the client or the server closes the connection."""
    exchange.start_reply(200, 1_000_000)
    while not exchange.pause(0.05):
        exchange.send(b" ")


def list_names(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir())


def test_the_newest_and_the_previous_adapter_are_loaded(
    store: Store, model: FakeVLLM, loader: AdapterLoader, tmp_path: Path
) -> None:
    found = loader.reconcile()
    assert (found.serving, found.wanted, found.is_ready, found.error) == (None, None, True, None), (
        "nothing is published yet"
    )
    published = [(name, publish_adapter(store, tmp_path / "made", name)) for name in ("r1-1-policy-0", "r1-1-policy-1")]
    found = loader.reconcile()
    assert (found.serving, found.is_ready) == ("r1-1-policy-1", True), "only the newest is loaded"
    published += [(name, publish_adapter(store, tmp_path / "made", name)) for name in ("r1-1-policy-2",)]
    loader.reconcile()
    published += [(name, publish_adapter(store, tmp_path / "made", name)) for name in ("r1-2-policy-2",)]
    found = loader.reconcile()
    assert model.loaded == published[1:]
    places = {name: str(tmp_path / "adapters" / name) for name in ("r1-1-policy-2", "r1-2-policy-2")}
    assert model.roots == places
    assert list_names(tmp_path / "adapters") == sorted(places)
    assert (found.serving, found.loads, found.failures) == ("r1-2-policy-2", 3, {})


def test_a_restarted_server_or_loader_serves_the_newest_adapter(
    store: Store, model: FakeVLLM, loader: AdapterLoader, tmp_path: Path
) -> None:
    for name in ("p-1", "p-2"):
        publish_adapter(store, tmp_path / "made", name)
        loader.reconcile()
    model.roots.clear()  # like a restarted vLLM
    assert loader.reconcile().serving == "p-2"
    assert list(model.roots) == ["p-2"]
    with AdapterLoader(store.uri, model.address, tmp_path / "adapters", PACE) as second:
        found = second.reconcile()
        assert (found.serving, found.is_ready, found.loads) == ("p-2", True, 0), "it finds the loaded adapters in vLLM"
        publish_adapter(store, tmp_path / "made", "p-3")
        publish_adapter(store, tmp_path / "made", "p-4")
        assert second.reconcile().serving == "p-4"
    assert list(model.roots) == ["p-2", "p-4"]
    assert list_names(tmp_path / "adapters") == ["p-2", "p-4"]


def get_readyz(url: str) -> tuple[int, str]:
    answer = httpx.get(f"{url}/readyz", trust_env=False)
    return answer.status_code, answer.text


def change_weights(store: Store, data: str, scratch: Path) -> None:
    overwrite(store, f"{data}/adapter_model.safetensors", b"p-2\n" * 750, scratch)  # same size


def delete_weights(store: Store, data: str, scratch: Path) -> None:  # noqa: ARG001
    store.storage.delete([f"{data}/adapter_model.safetensors"])


def change_digest(store: Store, data: str, scratch: Path) -> None:  # noqa: ARG001
    manifest = store.manifest(f"{ADAPTERS}/p-2")
    text = manifest.to_json().replace(manifest.files[1].sha256.encode(), b"0" * 64)
    overwrite(store, f"{manifest.reference}/manifest.json", text, scratch)


def delete_manifest(store: Store, data: str, scratch: Path) -> None:  # noqa: ARG001
    store.storage.delete([f"{ADAPTERS}/p-2/manifest.json"])


def truncate_manifest(store: Store, data: str, scratch: Path) -> None:  # noqa: ARG001
    overwrite(store, f"{ADAPTERS}/p-2/manifest.json", b'{"format": "gumshoe.artifact/1", ', scratch)


@pytest.mark.parametrize("damage", [change_weights, delete_weights, change_digest, delete_manifest, truncate_manifest])
def test_a_corrupted_adapter_is_never_loaded(
    store: Store,
    model: FakeVLLM,
    loader: AdapterLoader,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Store, str, Path], None],
) -> None:
    caplog.set_level(logging.INFO, "gumshoe.loader")
    for name in ("p-0", "p-1"):
        publish_adapter(store, tmp_path / "made", name)
        loader.reconcile()
    publish_adapter(store, tmp_path / "made", "p-2")
    damage(store, f"{ADAPTERS}/p-2/{store.manifest(f'{ADAPTERS}/p-2').data}", tmp_path)
    found = reconcile_until(loader, lambda found: found.failures.get("corrupt", 0) >= 3)
    assert (found.serving, found.wanted, found.is_ready, found.kind) == ("p-1", "p-2", False, "corrupt")
    assert "p-2" in str(found.error)
    assert list(model.roots) == ["p-0", "p-1"]
    assert "p-2" not in [name for name, _ in model.loaded]
    warned = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warned) == 1, "the warning is not repeated"
    with serve_status(loader, "127.0.0.1", 0) as url:
        shown = httpx.get(f"{url}/metrics", trust_env=False).text
        assert f'gumshoe_adapter_loader_failures_total{{kind="corrupt"}} {found.failures["corrupt"]}\n' in shown
        assert "gumshoe_adapter_loader_ready 0\n" in shown
        assert get_readyz(url) == (200, "ok\n"), "it is discoverable with an older adapter"
    publish_adapter(store, tmp_path / "made", "p-3")
    found = loader.reconcile()
    assert (found.serving, found.error) == ("p-3", None), "the next adapter is loaded at once"
    assert list(model.roots) == ["p-1", "p-3"]
    assert list_names(tmp_path / "adapters") == ["p-1", "p-3"]


def test_a_repaired_adapter_is_loaded(store: Store, model: FakeVLLM, loader: AdapterLoader, tmp_path: Path) -> None:
    weights = publish_adapter(store, tmp_path / "made", "p-1")
    key = f"{ADAPTERS}/p-1/{store.manifest(f'{ADAPTERS}/p-1').data}/adapter_model.safetensors"
    overwrite(store, key, weights[::-1], tmp_path)
    reconcile_until(loader, lambda found: found.kind == "corrupt")
    overwrite(store, key, weights, tmp_path)
    reconcile_until(loader, lambda found: found.is_ready)
    assert model.loaded == [("p-1", weights)]


@pytest.mark.parametrize("damage", [delete_weights, truncate_manifest])
def test_a_server_is_discoverable_if_the_only_adapter_is_damaged(
    store: Store,
    model: FakeVLLM,
    loader: AdapterLoader,
    tmp_path: Path,
    damage: Callable[[Store, str, Path], None],
) -> None:
    """Otherwise the trainer would not find the server to publish the next adapter to."""
    publish_adapter(store, tmp_path / "made", "p-2")
    damage(store, f"{ADAPTERS}/p-2/{store.manifest(f'{ADAPTERS}/p-2').data}", tmp_path)
    healthy = model.health
    with serve_status(loader, "127.0.0.1", 0) as url:
        assert get_readyz(url)[0] == 503, "nothing is known yet"
        found = loader.reconcile()
        assert (found.serving, found.is_ready, found.kind) == (None, False, "corrupt")
        assert get_readyz(url) == (200, "ok\n")
        loader.reconcile()
        assert get_readyz(url)[0] == 200, "also between two attempts"
        model.health = status(503)
        loader.reconcile()
        assert get_readyz(url)[0] == 503
        model.health = healthy
        publish_adapter(store, tmp_path / "made", "p-3")
        assert loader.reconcile().is_ready
        assert get_readyz(url)[0] == 200


def test_a_healthy_server_is_discoverable_if_latest_is_damaged(
    store: Store, model: FakeVLLM, loader: AdapterLoader, tmp_path: Path
) -> None:
    publish_adapter(store, tmp_path / "made", "p-1")
    overwrite(store, f"{ADAPTERS}/latest.json", b'{"version": ', tmp_path)
    healthy, model.health = model.health, status(503)
    with serve_status(loader, "127.0.0.1", 0) as url:
        assert loader.reconcile().kind == "corrupt", "the first error is reported"
        assert get_readyz(url)[0] == 503
        model.health = healthy
        loader.reconcile()
        assert get_readyz(url)[0] == 200


def test_a_server_is_discoverable_with_an_older_adapter_but_not_without_one(model: FakeVLLM, tmp_path: Path) -> None:
    store = Store((tmp_path / "store").as_uri())
    publish_adapter(store, tmp_path / "made", "p-1")
    with (
        AdapterLoader(store.uri, model.address, tmp_path / "adapters", IMPATIENT) as loader,
        serve_status(loader, "127.0.0.1", 0) as url,
    ):
        assert reconcile_until(loader, lambda found: found.is_ready).serving == "p-1"
        model.load = hang
        publish_adapter(store, tmp_path / "made", "p-2")
        found = reconcile_until(loader, lambda found: found.wanted == "p-2" and found.is_healthy)
        assert (found.serving, found.is_ready) == ("p-1", False)
        assert get_readyz(url) == (200, "ok\n")
        model.roots.clear()  # like a restarted vLLM
        found = reconcile_until(loader, lambda found: found.serving is None)
        assert get_readyz(url) == (503, f"{found.error}\n")
        model.load = refuse("no room", 400)
        reconcile_until(loader, lambda found: found.kind == "refused")
        assert get_readyz(url) == (200, "ok\n")


@pytest.mark.parametrize("name", ["../evil", "/etc", "a/b"])
def test_an_invalid_version_name_is_not_used_as_a_path(
    store: Store, model: FakeVLLM, loader: AdapterLoader, tmp_path: Path, name: str
) -> None:
    publish_adapter(store, tmp_path / "made", "p-1")
    loader.reconcile()
    overwrite(store, f"{ADAPTERS}/latest.json", json.dumps({"version": name}).encode(), tmp_path)
    found = loader.reconcile()
    assert (found.serving, found.wanted, found.kind) == ("p-1", "p-1", "corrupt")
    assert list_names(tmp_path / "adapters") == ["p-1"]
    assert list(model.roots) == ["p-1"]


def test_a_refused_load_is_reported_with_vllm_s_message(
    store: Store, model: FakeVLLM, loader: AdapterLoader, tmp_path: Path
) -> None:
    publish_adapter(store, tmp_path / "made", "too-high", rank=64)
    found = reconcile_until(loader, lambda found: found.refusals == 2)
    assert (found.kind, found.serving) == ("refused", None)
    assert "LoRA rank 64" in str(found.error)
    assert "max_lora_rank 16" in str(found.error)
    publish_adapter(store, tmp_path / "made", "p-1")
    assert loader.reconcile().serving == "p-1"

    def load_but_fail(exchange: Exchange) -> None:
        model.roots["p-2"] = exchange.request["lora_path"]
        refuse("The lora adapter 'p-2' has already been loaded.", 400)(exchange)

    model.load = load_but_fail
    publish_adapter(store, tmp_path / "made", "p-2")
    assert loader.reconcile().serving == "p-2"


@pytest.mark.parametrize("name", ["p-1", "p-2", "base-improved"])
def test_a_foreign_adapter_is_unloaded_and_reported(
    store: Store, model: FakeVLLM, loader: AdapterLoader, tmp_path: Path, name: str
) -> None:
    publish_adapter(store, tmp_path / "made", "p-1")
    loader.reconcile()
    model.roots[name] = str(tmp_path / "somewhere-else" / name)  # also in place of ours
    found = loader.reconcile()
    assert (found.kind, found.failures["foreign"], found.serving) == ("foreign", 1, "p-1")
    assert str(tmp_path / "somewhere-else" / name) in str(found.error)
    assert model.roots == {"p-1": str(tmp_path / "adapters" / "p-1")}
    found = loader.reconcile()
    assert (found.kind, found.failures["foreign"]) == (None, 1)


@pytest.mark.parametrize("name", ["../elsewhere", "/elsewhere", "p-1/../../elsewhere"])
def test_the_name_of_a_foreign_adapter_may_be_its_path(model: FakeVLLM, loader: AdapterLoader, name: str) -> None:
    model.roots[name] = str(loader._directory / name)
    assert loader.reconcile().failures["foreign"] == 1
    assert model.roots == {}


@pytest.mark.ci
@pytest.mark.parametrize("fault", [reset, hang, trickle, status(503), status(500)])
def test_a_failing_server_is_retried_until_it_recovers(
    model: FakeVLLM, tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: Callable[[Exchange], None]
) -> None:
    caplog.set_level(logging.INFO, "gumshoe.loader")
    store = Store((tmp_path / "store").as_uri())
    publish_adapter(store, tmp_path / "made", "p-1")
    healthy, model.health = model.health, fault
    with AdapterLoader(store.uri, model.address, tmp_path / "adapters", IMPATIENT) as loader:
        for _ in range(3):
            found = loader.reconcile()
            assert (found.kind, found.wanted, found.serving, found.is_ready) == ("server", "p-1", None, False)
        model.health = healthy
        if fault is hang:
            model.load = hang
            reconcile_until(loader, lambda found: "/v1/load_lora_adapter" in str(found.error))
            model.load = load_adapter
        assert reconcile_until(loader, lambda found: found.is_ready).serving == "p-1"
        model.health = fault
        found = loader.reconcile()
        assert (found.serving, found.is_ready) == ("p-1", False)
    changes = [each.levelname for each in caplog.records if "Loaded" not in each.message]
    assert changes == ["WARNING", "INFO", "WARNING"], "each change is logged once"


@pytest.mark.ci
def test_local_adapters_are_served_while_the_store_is_unavailable(
    proxy: FaultProxy, s3_bucket: str, aws_environment: pytest.MonkeyPatch, model: FakeVLLM, tmp_path: Path
) -> None:
    store = Store(f"s3://{s3_bucket}/policies")
    publish_adapter(store, tmp_path / "made", "p-1")
    aws_environment.setenv("AWS_ENDPOINT_URL", proxy.address)
    with AdapterLoader(store.uri, model.address, tmp_path / "adapters", IMPATIENT) as loader:
        proxy.inject(answer(503, "SlowDown"), "GET", times=None)
        found = loader.reconcile()
        assert (found.kind, found.is_ready, found.wanted) == ("store", False, None), "unknown if an adapter exists"
        proxy.heal()
        reconcile_until(loader, lambda found: found.is_ready)
        proxy.inject(stall, "GET", times=None)
        model.roots.clear()
        found = reconcile_until(loader, lambda found: found.is_ready)
        assert (found.kind, found.serving) == ("store", "p-1"), "reloaded from the disk"
        proxy.heal()
        publish_adapter(store, tmp_path / "made", "p-2")
        proxy.inject(answer(503, "SlowDown"), "GET", "safetensors", times=None)
        found = reconcile_until(loader, lambda found: found.wanted == "p-2" and found.is_healthy)
        assert (found.kind, found.serving, found.wanted) == ("store", "p-1", "p-2")
        proxy.heal()
        assert reconcile_until(loader, lambda found: found.is_ready).serving == "p-2"


def test_a_pruned_adapter_is_not_reported_as_corrupted(
    store: Store, model: FakeVLLM, loader: AdapterLoader, tmp_path: Path
) -> None:
    publish_adapter(store, tmp_path / "made", "p-1")
    model.load = refuse("not now", 503)
    loader.reconcile()
    publish_adapter(store, tmp_path / "made", "p-2")
    remove_artifact(store, store.manifest(f"{ADAPTERS}/p-1"))
    model.load = load_adapter
    found = reconcile_until(loader, lambda found: found.is_ready)
    assert (found.serving, "corrupt" in found.failures) == ("p-2", False)


def test_two_loaders_each_serve_their_own_server(store: Store, model: FakeVLLM, tmp_path: Path) -> None:
    with (
        FakeVLLM(models=("base",)) as other,
        AdapterLoader(store.uri, model.address, tmp_path / "one", PACE) as first,
        AdapterLoader(store.uri, other.address, tmp_path / "two", PACE) as second,
    ):
        for name in ("p-1", "p-2", "p-3"):
            publish_adapter(store, tmp_path / "made", name)
            assert first.reconcile().serving == second.reconcile().serving == name
        assert list(model.roots) == list(other.roots) == ["p-2", "p-3"]


def test_other_files_in_the_directory_are_kept(
    store: Store, model: FakeVLLM, loader: AdapterLoader, tmp_path: Path
) -> None:
    own = tmp_path / "adapters" / "lost+found"
    own.mkdir()
    (tmp_path / "adapters" / "notes").write_text("mine")
    model.models = ("base", "static")  # an adapter that vLLM was started with
    for name in ("p-1", "p-2", "p-3"):
        publish_adapter(store, tmp_path / "made", name)
        loader.reconcile()
    assert list_names(tmp_path / "adapters") == ["lost+found", "notes", "p-2", "p-3"]
    assert list(model.roots) == ["p-2", "p-3"]


def test_the_command_serves_status_pages_and_ends_at_once_on_sigterm(
    run: Callable[..., CommandResult], model: FakeVLLM, tmp_path: Path
) -> None:
    """SIGTERM ends it even while vLLM does not answer a load request."""
    store, port = Store((tmp_path / "store").as_uri()), find_free_port()
    words = ["adapter-loader", store.uri, "--server", model.address, "--directory", str(tmp_path / "adapters")]
    words += ["--port", str(port), "--host", "127.0.0.1", "--every", "0.05"]
    log, is_loading = tmp_path / "log", threading.Event()

    def hang_while_loading(exchange: Exchange) -> None:
        is_loading.set()
        hang(exchange)

    with log.open("wb") as output:
        process = start_gumshoe(*words, stderr=output)
    try:
        shown = wait_for_answer(process, f"http://127.0.0.1:{port}/readyz", lambda answer: answer.status_code == 200)
        assert shown.text == "ok\n"
        publish_adapter(store, tmp_path / "made", "p-1")
        status_page = f"http://127.0.0.1:{port}/status"
        found = wait_for_answer(process, status_page, lambda answer: answer.json()["serving"] == "p-1").json()
        assert (found["wanted"], found["error"], found["ready"], found["loads"]) == ("p-1", None, True, 1)
        assert found["since"].endswith("+00:00")
        assert httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False).status_code == 200
        assert "gumshoe_adapter_loader_ready 1\n" in httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
        assert httpx.get(f"http://127.0.0.1:{port}/", trust_env=False).status_code == 404
        ended = run(*words)
        assert (ended.status, ended.code) == (2, "loader.directory-in-use")
        assert str(tmp_path / "adapters") in ended.err
        model.load = hang_while_loading
        publish_adapter(store, tmp_path / "made", "p-2")
        wait_until(is_loading.is_set, process, log.read_text)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    finally:
        process.kill()
        process.wait()
    assert "Loaded p-1 after" in log.read_text()
    assert "did not answer" not in log.read_text()


def wait_for_answer(process: Process, url: str, holds: Callable[[httpx.Response], bool]) -> httpx.Response:
    """Request a page of a process until the answer is as expected, and return it."""
    answers: list[httpx.Response] = []

    def is_expected() -> bool:
        with suppress(httpx.TransportError):
            answers.append(httpx.get(url, timeout=None, trust_env=False))
        return bool(answers) and holds(answers[-1])

    wait_until(is_expected, process)
    return answers[-1]


def test_a_port_in_use_is_reported(loader: AdapterLoader) -> None:
    with (
        serve_status(loader, "127.0.0.1", 0) as url,
        raises("loader.cannot-listen", url.removeprefix("http://")),
        serve_status(loader, "127.0.0.1", int(url.rpartition(":")[2])),
    ):
        pass


def test_a_stalled_loop_is_detected(clock: Clock, loader: AdapterLoader) -> None:
    clock.advance(PACE.stall_timeout - 60)
    assert not loader.is_stalled()
    clock.advance(61)
    assert loader.is_stalled()
