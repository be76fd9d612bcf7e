"""Adapters that are bound to the inboxes that they were trained on: other callers do not get their answers."""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gumshoe.errors import UsageError
from gumshoe.inference.policy_names import PolicyName
from gumshoe.inference.vllm_server import VLLMServer
from gumshoe.scenarios.lineage import Lineage
from gumshoe.scenarios.scenario import Scenario, ScenarioSet
from gumshoe.serving.adapter_binding import AdapterBoundError, bind_policies, check_fallback
from gumshoe.serving.served_policies import open_policies
from gumshoe.serving.settings import ServedModelSettings
from tests.conftest import CommandResult
from tests.errors import raises
from tests.inference.fake_vllm import FakeVLLM, write_tokenizer
from tests.mail.mailbox import make_index, record
from tests.scenarios.questions import scenario
from tests.serving.agent_server import ANN, BOB, DAY, EVE, ServerFiles, code_of, question_body
from tests.serving.in_process import make_scenario, make_settings, model_settings, open_test_service, serve_in_thread

pytestmark = pytest.mark.group("serving")


def trained_on(directory: Path, *inboxes: str) -> Path:
    """Write the directory of an adapter: a tokenizer, and the record of inboxes."""
    write_tokenizer(directory)
    (directory / "adapter_config.json").write_text(json.dumps({"r": 8}))
    asked = (scenario(number, inbox_address=each) for number, each in enumerate(inboxes, 1))
    Lineage.of(ScenarioSet.of(asked)).write(directory)
    return directory


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return trained_on(tmp_path / "adapter", ANN)


@pytest.mark.ci
def test_callers_of_other_inboxes_get_the_base_model(place: ServerFiles, model: FakeVLLM, adapter: Path) -> None:
    settings = model_settings(place, model.address, tokenizer=str(adapter), bound="base")
    with serve_in_thread(make_settings(place, model=settings)) as client:
        answers = {inbox: client.ask(inbox_address=inbox).json()["policy"] for inbox in (ANN, BOB, EVE)}
        assert answers == {ANN: "adapter", BOB: "base", EVE: "base"}
        assert client.client.get("/readyz").json()["policies"] == ["adapter", "base"]
        assert client.metric("gumshoe_episodes_total", policy="base", outcome="answered") >= 1
    sampled = [each["model"] for each in model.requests if each.get("top_k") != 1]
    assert {*sampled} == {"adapter", "base"}


def test_callers_of_other_inboxes_are_refused(place: ServerFiles, model: FakeVLLM, adapter: Path) -> None:
    settings = model_settings(place, model.address, tokenizer=str(adapter), bound="refuse")
    with serve_in_thread(make_settings(place, model=settings)) as client:
        assert client.ask(inbox_address=ANN).json()["policy"] == "adapter"
        asked = len(model.requests)
        refused = [client.ask(inbox_address=each) for each in (BOB, "nobody@example.com")]
        assert {(each.status_code, code_of(each)) for each in refused} == {(403, "serving.adapter-bound")}
        assert len(model.requests) == asked
        assert client.metric("gumshoe_refused_total", why="adapter bound") == 2


def test_an_adapter_that_is_not_bound_answers_everybody(place: ServerFiles, model: FakeVLLM, adapter: Path) -> None:
    with serve_in_thread(
        make_settings(place, model=model_settings(place, model.address, tokenizer=str(adapter)))
    ) as client:
        assert client.ask(inbox_address=BOB).json()["policy"] == "adapter"


def test_a_canary_has_its_own_inboxes(place: ServerFiles, model: FakeVLLM, adapter: Path, tmp_path: Path) -> None:
    model.roots["next"] = ""
    canary = {"canary": "next", "canary_percent": 100, "canary_adapter": trained_on(tmp_path / "next", ANN, BOB)}

    async def policies() -> list[str]:
        settings = {"tokenizer": str(adapter), "bound": "base", **canary}
        async with open_test_service(place, model.address, {}, **settings) as service:
            opened = [*service.candidates, *([service.fallback] if service.fallback else ())]
            while any(each.problem for each in opened):
                await asyncio.sleep(0.01)
            asked = [make_scenario().model_copy(update={"inbox_address": each}) for each in (ANN, BOB, EVE)]
            return [(await service.answer(each, None, lambda _: None, "caller")).policy for each in asked]

    try:
        assert asyncio.run(policies()) == ["next", "next", "base"]
    finally:
        model.roots.clear()


@pytest.mark.parametrize(
    ("file", "record", "what"),
    [
        ("environment.json", {"name": "email", "arguments": {"hits": 4}}, "environment"),
        ("environment.json", {"name": "email", "arguments": {"marks": True, "attachments": True}}, None),
        ("chat_settings.json", {"thinking_budget": 64}, "chat settings"),
    ],
)
def test_a_canary_that_was_trained_differently_is_refused_at_the_start(
    place: ServerFiles,
    model: FakeVLLM,
    adapter: Path,
    tmp_path: Path,
    file: str,
    record: dict[str, Any],
    what: str | None,
) -> None:
    canary = trained_on(tmp_path / "next", ANN)
    (canary / file).write_text(json.dumps(record))

    async def start() -> None:
        own = {"canary": "next", "canary_adapter": canary}
        async with open_test_service(place, model.address, {}, tokenizer=str(adapter), **own):
            pass

    if what is None:
        asyncio.run(start())
        return
    with raises("serving.canary-trained-differently", "next", what):
        asyncio.run(start())


class _Policy:
    """A policy in service, as far as binding needs it."""

    def __init__(self, version: str, *directories: Path) -> None:
        self.name = type("Name", (), {"version": version})()
        self.directories = directories
        self.bound_to: tuple[Lineage, ...] = ()


def bind(model: dict[str, Any], *policies: _Policy) -> None:
    bind_policies(policies, ServedModelSettings.model_validate(model))  # type: ignore[arg-type] # what it needs


def test_a_bound_policy_needs_a_record_of_all_inboxes(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    Lineage(learned_from=ScenarioSet.of([scenario(1)]).to_record()).write(old)
    for policy in (_Policy("a"), _Policy("a", tmp_path), _Policy("a", old)):
        for mode in ("base", "refuse"):
            with raises("serving.binding-record-missing", "model.tokenizer", mode):
                bind({"bound": mode}, policy)
        bind({}, policy)
        assert policy.bound_to == ()
    known = _Policy("a", trained_on(tmp_path / "known", ANN))
    with raises("serving.binding-record-missing", "model.canary_adapter"):
        bind({"bound": "refuse"}, known, _Policy("b"))


@pytest.mark.parametrize(
    ("inbox", "model", "is_warned"),
    [
        ("carol@acme.com", {}, True),
        ("carol@acme.com", {"bound": "base"}, False),
        ("carol@acme.example", {}, False),
    ],
)
def test_an_unbound_adapter_of_real_mail_is_reported(
    inbox: str, model: dict[str, Any], is_warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="gumshoe.serving.adapter_binding"):
        bind(model, _Policy("mine-3", trained_on(tmp_path / "a", inbox)))
    assert bool(caplog.records) is is_warned
    assert inbox not in caplog.text


def test_a_base_model_that_was_trained_on_mail_is_no_fallback(tmp_path: Path) -> None:
    with raises("serving.base-model-trained"):
        check_fallback([trained_on(tmp_path / "merged", ANN)])
    check_fallback([tmp_path])
    check_fallback([trained_on(tmp_path / "new")])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"canary": "next", "bound": "base"}, "canary_adapter"),
        ({"canary": "next", "bound": "refuse"}, "canary_adapter"),
        ({"canary_adapter": "next"}, "canary_adapter"),
        ({"bound": "sometimes"}, "bound"),
    ],
)
def test_incomplete_settings_are_refused(place: ServerFiles, changes: dict[str, Any], named: str) -> None:
    with raises("serving.invalid-settings", named):
        make_settings(place, model=model_settings(place, "http://127.0.0.1:9", **changes))


def test_without_an_adapter_there_is_nothing_to_bind(place: ServerFiles, model: FakeVLLM, adapter: Path) -> None:
    async def open_it() -> None:
        settings = {"policy": f"vllm:{model.address}", "tokenizer": str(adapter), "bound": "base"}
        async with open_test_service(place, model.address, {}, **settings):
            raise AssertionError("it must not open")

    with raises("serving.no-adapter-to-bind", "base"):
        asyncio.run(open_it())


def test_several_samples_of_a_question_keep_to_the_binding(place: ServerFiles, model: FakeVLLM, adapter: Path) -> None:
    async def answers() -> list[str]:
        more = {"samples": 3, "temperature": 1.0, "bound": "refuse", "tokenizer": str(adapter)}
        async with open_test_service(place, model.address, {}, **more) as service:
            ann = make_scenario()
            found = [(await service.answer(ann, None, lambda _: None, "caller")).policy]
            bob = ann.model_copy(update={"inbox_address": BOB})
            with pytest.raises(AdapterBoundError):
                await service.answer(bob, "a session", lambda _: None, "caller")
            return found

    assert asyncio.run(answers()) == ["adapter"]


def test_streams_and_mcp_tools_keep_to_the_binding(place: ServerFiles, model: FakeVLLM, adapter: Path) -> None:
    settings = model_settings(place, model.address, tokenizer=str(adapter), bound="refuse")
    with serve_in_thread(make_settings(place, model=settings)) as client:
        stream = client.client.post("/invoke/stream", json=question_body(inbox_address=BOB))
        assert "serving.adapter-bound" in stream.text
        asked = {"question": "What is in 7?", "inbox_address": BOB, "query_date": DAY}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "ask", "arguments": asked}}
        kinds = {"Accept": "application/json, text/event-stream"}
        assert "serving.adapter-bound" in client.client.post("/mcp", json=call, headers=kinds).text
        assert [each for each in model.requests if each.get("top_k") != 1] == []


@pytest.mark.group("torch")
def test_a_local_policy_opens_its_base_model_beside_the_adapter(
    place: ServerFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gumshoe.serving.served_policies import choose_policy
    from gumshoe.training.adapters.adapter_files import create_adapter
    from tests.training.recorded_episodes import settings_of

    monkeypatch.setenv("GUMSHOE_ENGINE", "transformers")
    create_adapter(settings_of(), tmp_path / "adapter")
    Lineage.of(ScenarioSet.of([scenario(1, inbox_address=ANN)])).write(tmp_path / "adapter")

    async def versions() -> list[str]:
        settings = make_settings(place, model={"policy": f"tiny#{tmp_path / 'adapter'}", "bound": "base"})
        async with open_policies(settings) as (policies, fallback, _):
            asked = [make_scenario().model_copy(update={"inbox_address": each}) for each in (ANN, BOB)]
            chosen = [choose_policy(policies, None, each, fallback) for each in asked]
            assert all(each.run for each in chosen)
            return [each.name.version for each in chosen]

    assert asyncio.run(versions()) == [f"tiny#{tmp_path / 'adapter'}", "tiny"]


@pytest.fixture
def _own_vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let local policies start a fake server as their own."""
    with FakeVLLM() as server:

        class StartedServer(VLLMServer):
            def __enter__(self) -> "StartedServer":
                server.models, self.url = (self._options.name,), server.address
                return self

            def is_running(self) -> bool:
                return True

        monkeypatch.setenv("GUMSHOE_ENGINE", "vllm")
        monkeypatch.setattr("gumshoe.inference.policy_names.VLLMServer", StartedServer)
        yield
        assert server.errors == []


@pytest.mark.usefixtures("_own_vllm")
def test_the_base_model_of_a_local_policy_has_the_name_that_its_own_server_gives_it(
    place: ServerFiles, adapter: Path
) -> None:
    (adapter / "adapter_model.safetensors").touch()
    settings = {"policy": f"local:{place.tokenizer}#{adapter}", "bound": "base", "max_context": 50_000}
    with serve_in_thread(make_settings(place, model=settings)) as client:
        answers = [client.ask(inbox_address=each).json()["policy"] for each in (ANN, BOB)]
    assert answers == [f"{place.tokenizer}#{adapter}", str(place.tokenizer)]


@pytest.mark.usefixtures("_own_vllm")
def test_a_trained_base_model_on_its_own_server_has_nothing_to_bind(place: ServerFiles, adapter: Path) -> None:
    (adapter / "adapter_config.json").unlink()

    async def open_it() -> None:
        async with open_policies(make_settings(place, model={"policy": f"local:{adapter}", "bound": "base"})):
            raise AssertionError("it must not open")

    with raises("serving.no-adapter-to-bind", str(adapter)):
        asyncio.run(open_it())


@pytest.mark.parametrize(
    ("share", "problem", "fallback", "expected"),
    [
        (1.0, "", True, "canary"),
        (0.0, "", True, "base"),
        (0.0, "", False, None),
        (1.0, "not loaded", True, "base"),
        (1.0, "not loaded", False, None),
    ],
)
def test_questions_that_only_a_canary_may_answer_come_to_it_by_its_share(
    share: float, problem: str, fallback: bool, expected: str | None
) -> None:
    from gumshoe.serving.served_policies import ServedPolicy, choose_policy

    def bound(inbox: str) -> tuple[Lineage, ...]:
        return (Lineage.of(ScenarioSet.of([scenario(1, inbox_address=inbox)])),)

    def served(name: str, share: float = 1.0, **more: Any) -> ServedPolicy:
        return ServedPolicy(PolicyName.parse(f"chat:{name}"), share, **more)

    policies = [served("main", bound_to=bound(ANN)), served("canary", share, bound_to=bound(BOB), problem=problem)]
    asked = make_scenario().model_copy(update={"inbox_address": BOB})
    if expected is None:
        with pytest.raises(AdapterBoundError):
            choose_policy(policies, "s", asked, None)
        return
    assert choose_policy(policies, "s", asked, served("base") if fallback else None).name.model == expected


# Canaries of the training.


def test_an_index_with_canaries_is_not_served(
    run: Callable[..., CommandResult], place: ServerFiles, tmp_path: Path
) -> None:
    mail = [record(1), record(2, message_id="<canary.badekiso@canary.example>")]
    index = make_index(tmp_path, mail).path.parent
    ran = run("serve", "--policy", "keywords", "--index", index, "--open", "--port", 0)
    assert (ran.status, ran.code) == (2, "serving.index-has-canaries")
    from gumshoe.environments.registry import open_env
    from gumshoe.serving.served_index import check_served_index

    check_served_index(open_env(place.index))
    with pytest.raises(UsageError):
        check_served_index(open_env(index))


def test_a_question_carries_its_inbox_in_any_spelling(adapter: Path) -> None:
    found = Lineage.read(adapter)
    assert found
    asked = Scenario.from_question("What?", "ANN@example.COM", None)
    assert found.admits(asked)
