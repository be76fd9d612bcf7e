"""Test the audit log: who read whose mail, with ids and without contents, for each way to read."""

import json
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CommandResult
from tests.inference.fake_vllm import FakeVLLM, status
from tests.serving.agent_server import (
    ANN,
    BOB,
    DAY,
    EVE,
    AgentProcess,
    ServerFiles,
    add_key,
    question_body,
    start_server,
)
from tests.serving.in_process import make_settings, model_settings, serve_in_thread
from tests.serving.mcp_client import call_tools

SEVENTH = "<7@example.com>"
ESCAPE = "\x1b[31m\n\u202e"


@pytest.fixture(scope="module")
def audited(
    place: ServerFiles, shared_model: FakeVLLM, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AgentProcess]:
    """Start a server whose audit lines are in its log, with a key for Ann's mail that has a long name."""
    directory = tmp_path_factory.mktemp("audit")
    key = add_key(directory / "keys", "calendar" + ESCAPE + "x" * 5000, [ANN])
    keeping = ["--store", str(directory / "store"), "--set", "keeping.feedback=true"]
    policy = f"vllm:{shared_model.address}#adapter"
    with start_server(
        place, policy, directory / "log", "--keys", str(directory / "keys"), *keeping, key=key
    ) as running:
        yield running


def lines_after(server: AgentProcess, action: Callable[[], Any]) -> tuple[list[dict[str, Any]], Any]:
    """Return the audit lines that an action causes, and its result."""
    before = len(read_lines(server.log))
    result = action()
    return read_lines(server.log)[before:], result


def read_lines(log: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return [each for each in lines if each["logger"] == "gumshoe.audit"]


def summarize(lines: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(each["event"], each.get("tool"), each["source_ids"], each.get("policy")) for each in lines]


@pytest.mark.parametrize("path", ["/invoke", "/invoke/stream"])
@pytest.mark.usefixtures("model")
def test_a_question_and_its_tool_calls_are_recorded(path: str, audited: AgentProcess) -> None:
    request = {"X-Request-ID": f"request-{path.count('/')}"}
    lines, response = lines_after(audited, lambda: audited.client.post(path, json=question_body(), headers=request))
    assert response.is_success
    assert summarize(lines) == [
        ("search", "search_inbox", [SEVENTH], "adapter"),
        ("read", "read_email", [SEVENTH], "adapter"),
        ("question", None, [SEVENTH], "adapter"),
    ]
    for each in lines:
        assert (each["inbox"], each["principal_kind"], each["request_id"]) == (ANN, "key", request["X-Request-ID"])
        assert each["time"]
        assert len(each["principal"]) <= 80
        assert each["principal"].isprintable()
        assert each["principal"].startswith("calendar")
    text = audited.log.read_text()
    assert "What is in" not in text
    assert "Body of message" not in text
    assert "Subject" not in text
    assert not any(each in text for each in ("\x1b", "\u202e"))


@pytest.mark.usefixtures("model")
def test_a_source_is_recorded_if_it_exists(audited: AgentProcess) -> None:
    def read(name: str) -> int:
        body = {"source_id": name, "inbox_address": ANN, "query_date": DAY}
        return audited.client.post("/source", json=body).status_code

    lines, found = lines_after(audited, lambda: (read(SEVENTH), read("<99@example.com>"), read("x" * 900)))
    assert found == (200, 404, 404)
    assert summarize(lines) == [
        ("source", None, [SEVENTH], None),
        ("source", None, [], None),
        ("source", None, [], None),
    ]


@pytest.mark.usefixtures("model")
def test_a_refused_inbox_is_recorded(audited: AgentProcess) -> None:
    lines, response = lines_after(audited, lambda: audited.ask(inbox_address=EVE))
    assert response.status_code == 403
    assert [(each["event"], each["inbox"], each["source_ids"]) for each in lines] == [("refused", EVE, [])]


@pytest.mark.usefixtures("model")
def test_feedback_is_recorded_with_the_caller_s_pseudonym(audited: AgentProcess) -> None:
    body = question_body() | {"answer": "secret words", "source_ids": [SEVENTH], "right": True}
    wrong = body | {"right": False, "source_ids": ["made up, with words"]}
    lines, _ = lines_after(audited, lambda: [audited.client.post("/feedback", json=each) for each in (body, wrong)])
    assert [(each["event"], each["source_ids"], each["kept"]) for each in lines] == [
        ("feedback", [SEVENTH], True),
        ("feedback", [], False),
    ]
    assert len(lines[0]["given_by"]) == 16
    assert "secret words" not in audited.log.read_text()
    assert "made up" not in audited.log.read_text()


@pytest.mark.usefixtures("model")
def test_tools_of_mcp_are_recorded(audited: AgentProcess) -> None:
    lines, _ = lines_after(
        audited,
        lambda: call_tools(
            audited,
            ("search_inbox", {"keywords": ["body", "7"], "query_date": DAY}),
            ("read_email", {"message_id": SEVENTH, "query_date": DAY}),
            ("read_email", {"message_id": "<99@example.com>", "query_date": DAY}),
            ("search_inbox", {"keywords": ["zebra"], "query_date": DAY}),
            ("read_email", {"message_id": SEVENTH, "inbox_address": BOB}),
            ("ask", {"question": "What is in 7?", "query_date": DAY}),
        ),
    )
    assert [(each["event"], each.get("tool"), each["inbox"], each["source_ids"]) for each in lines] == [
        ("search", "search_inbox", ANN, [SEVENTH]),
        ("read", "read_email", ANN, [SEVENTH]),
        ("read", "read_email", ANN, []),
        ("search", "search_inbox", ANN, []),
        ("refused", None, BOB, []),
        ("search", "search_inbox", ANN, [SEVENTH]),
        ("read", "read_email", ANN, [SEVENTH]),
        ("question", None, ANN, [SEVENTH]),
    ]
    assert all(each["request_id"] and each["principal"].startswith("calendar") for each in lines)


def test_what_was_read_is_recorded_even_if_the_model_then_fails(audited: AgentProcess, model: FakeVLLM) -> None:
    model.inject(status(500), times=None, after=1)
    lines, response = lines_after(audited, audited.ask)
    assert response.status_code == 502
    assert summarize(lines) == [("search", "search_inbox", [SEVENTH], "adapter")]


def test_documents_are_recorded_with_the_collections_that_may_be_read(
    place: ServerFiles, model: FakeVLLM, tmp_path: Path
) -> None:
    from gumshoe.serving.key_file import add_key
    from tests.documents.pages import make_collection, page

    pages = [page(number, collection="hr" if number == 7 else "eng-docs") for number in range(1, 10)]
    documents = ServerFiles(make_collection(tmp_path, pages), place.tokenizer)
    keys, file = tmp_path / "keys", tmp_path / "audit.jsonl"
    reader, nobody = add_key(keys, "reader", [], ["hr"]), add_key(keys, "nobody", [])
    given = {"access": {"keys": str(keys)}, "audit": str(file)}
    settings = make_settings(documents, model=model_settings(documents, model.address), **given)
    with serve_in_thread(settings, key=reader) as server:
        body = {"question": "What is in 7?"}
        assert server.client.post("/invoke", json=body).is_success
        refused = server.client.post("/invoke", json=body, headers={"Authorization": f"Bearer {nobody}"})
        assert refused.status_code == 403
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(each["event"], each["principal"], each["collections"], each["source_ids"]) for each in lines] == [
        ("search", "reader", ["hr"], ["d7"]),
        ("read", "reader", ["hr"], ["d7"]),
        ("question", "reader", ["hr"], ["d7"]),
        ("refused", "nobody", [], []),
    ]
    assert not any("inbox" in each for each in lines)
    assert "document 7" not in file.read_text()


def test_all_samples_are_recorded(place: ServerFiles, model: FakeVLLM, tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    changes = {"samples": 3, "temperature": 1.0}
    settings = make_settings(place, model=model_settings(place, model.address, **changes), audit=str(file))
    with serve_in_thread(settings) as server:
        assert server.ask().is_success
    events = [each["event"] for each in map(json.loads, file.read_text().splitlines())]
    assert sorted(events) == ["question", *["read"] * 3, *["search"] * 3]


def test_a_policy_of_a_custom_environment_is_recorded_too(
    place: ServerFiles, model: FakeVLLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gumshoe.environments.recorded import write_environment
    from gumshoe.environments.registry import EnvironmentSettings, open_env
    from tests.environments.own_environments import OwnMailEnvironment

    own = EnvironmentSettings(name="tests.environments.own_environments:OwnMailEnvironment")
    trained, file = shutil.copytree(place.tokenizer, tmp_path / "trained"), tmp_path / "audit.jsonl"
    write_environment(open_env(place.index, own), trained)
    monkeypatch.setattr(OwnMailEnvironment, "made_ready", [])
    changes = model_settings(place, model.address, tokenizer=str(trained))
    with serve_in_thread(make_settings(place, model=changes, audit=str(file))) as server:
        assert OwnMailEnvironment.made_ready == [place.index]
        assert server.ask().is_success
    assert [json.loads(line)["event"] for line in file.read_text().splitlines()] == ["search", "read", "question"]


def test_a_file_is_private_appended_to_and_opened_again_after_rotation(
    place: ServerFiles, model: FakeVLLM, tmp_path: Path
) -> None:
    file = tmp_path / "audit.jsonl"
    settings = make_settings(place, model=model_settings(place, model.address), audit=str(file))
    for number in (1, 2):
        with serve_in_thread(settings) as server:
            assert server.ask().is_success
            assert len(file.read_text().splitlines()) == 3 * number
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with serve_in_thread(settings) as server:
        file.rename(tmp_path / "old.jsonl")
        assert server.ask().is_success
        assert len(file.read_text().splitlines()) == 3
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert {json.loads(line)["principal_kind"] for line in file.read_text().splitlines()} == {"anybody"}


def test_a_file_that_cannot_be_opened_again_stops_no_request(
    place: ServerFiles, model: FakeVLLM, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    file = tmp_path / "audit.jsonl"
    settings = make_settings(place, model=model_settings(place, model.address), audit=str(file))
    with serve_in_thread(settings) as server:
        file.rename(tmp_path / "old.jsonl")
        file.mkdir()
        assert server.ask().is_success
        assert sum(str(file) in each.message for each in caplog.records if each.levelname == "ERROR") == 3
        file.rmdir()
        assert server.ask().is_success
        assert len(file.read_text().splitlines()) == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the full device of Linux")
def test_a_full_disk_stops_neither_a_line_nor_the_end(caplog: pytest.LogCaptureFixture) -> None:
    from gumshoe.serving.access import Principal
    from gumshoe.serving.audit_log import AuditTrail, open_audit_log
    from tests.serving.in_process import make_scenario

    with open_audit_log("/dev/full") as log:
        AuditTrail(log.logger, Principal("x", ())).write("read", make_scenario())
    assert ["/dev/full" in each.message for each in caplog.records] == [True, True]


def test_nothing_is_recorded_with_none(place: ServerFiles, model: FakeVLLM, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for audit, count in (("none", 0), ("log", 3)):
        settings = make_settings(place, model=model_settings(place, model.address), audit=audit)
        with serve_in_thread(settings) as server:
            assert server.ask().is_success
        assert sum(each.name == "gumshoe.audit" for each in caplog.records) == count


def test_a_file_that_cannot_be_written_is_named(
    place: ServerFiles, run: Callable[..., CommandResult], tmp_path: Path
) -> None:
    file = tmp_path / "none" / "audit.jsonl"
    ran = run("serve", "--index", place.index, "--policy", "chat:x", "--open", "--port", 0, "--set", f"audit={file}")
    assert (ran.status, ran.code) == (2, "serving.audit-log-unwritable"), ran.err
    assert str(file) in ran.err


def test_an_audited_toolbox_is_like_the_original(place: ServerFiles) -> None:
    import logging
    from contextvars import copy_context

    from gumshoe.environments.registry import open_env
    from gumshoe.environments.tools import Toolbox
    from gumshoe.serving.access import Principal
    from gumshoe.serving.audit_log import AuditLog, audit_environments
    from tests.serving.in_process import make_scenario

    env_factory = open_env(place.index)
    request = copy_context()
    request.run(AuditLog(logging.getLogger("gumshoe.audit")).start_trail, Principal("x", ()))
    original, audited = (
        request.run(each.new_environment, make_scenario(), 3).toolbox
        for each in (env_factory, audit_environments(env_factory))
    )
    public = {name for name in vars(Toolbox) if not name.startswith("_")}
    assert public <= vars(type(audited)).keys()
    assert type(audited) is not type(original)
    assert audited.has_marks == original.has_marks
    assert audited.schemas() == original.schemas()
    assert [each.__name__ for each in audited.tools] == [each.__name__ for each in original.tools]


def test_no_id_can_hide_a_source_from_the_log(tmp_path: Path) -> None:
    """Ids that look like credentials are written as they are, but safe to show. Everything else is masked."""
    from gumshoe.serving.access import Principal
    from gumshoe.serving.audit_log import open_audit_log, record_access, write_line
    from tests.serving.in_process import make_scenario

    secret, file = "sk-aaaaaaaaaaaaaaaaaaaa", tmp_path / "audit.jsonl"
    ids, inbox = [f"<{secret}@evil.example>", f"http://a:b@c/?token=d{ESCAPE}"], f"{secret}@example.com"
    scenario = make_scenario().model_copy(update={"inbox_address": inbox, "collections": (secret,)})
    with open_audit_log(str(file)) as log:
        log.start_trail(Principal(secret, ()))
        record_access("read", scenario, ids, tool=secret)
        write_line({"source_ids": ids, "policy": secret})  # of a worker process
    text = file.read_text()
    assert not any(each in text for each in ("\x1b", "\u202e"))
    first, second = map(json.loads, text.splitlines())
    assert (first["source_ids"], first["inbox"], first["collections"]) == (ids, inbox, [secret])
    assert (first["principal"], first["tool"]) == (secret, "***")
    assert (second["source_ids"], second["policy"]) == (ids, "***")


def test_many_ids_and_long_ones_are_cut(caplog: pytest.LogCaptureFixture) -> None:
    import logging

    from gumshoe.serving.access import Principal
    from gumshoe.serving.audit_log import AuditTrail
    from tests.serving.in_process import make_scenario

    caplog.set_level("INFO")
    trail = AuditTrail(logging.getLogger("gumshoe.audit"), Principal("x", ()))
    trail.write("search", make_scenario(), [f"{number}{'x' * 900}" for number in range(250)])
    fields: dict[str, Any] = caplog.records[-1].fields  # type: ignore[attr-defined]
    assert (len(fields["source_ids"]), fields["more_sources"]) == (100, 150)
    assert max(map(len, fields["source_ids"])) == 200


@pytest.mark.parametrize(
    ("name", "is_changed"),
    [
        ("ann", False),
        ("ann@bücher.example", False),
        ("用户", False),
        ("a" * 80, False),
        ("a" * 81, True),
        ("a" * 100_000, True),
        ("a\nb", True),
        ('a\r{"event": "read"}', True),
        ("\x1b[2Jann", True),
        ("ann\u009b31m", True),
        ("\u202eann", True),
        ("ann\u200b", True),
        ("ann\u2028", True),
        ("\ud800", True),
        ("ann~0123456789ab", True),
    ],
    ids=ascii,
)
def test_names_of_callers_are_short_and_printable(name: str, is_changed: bool) -> None:
    from gumshoe.serving.access import Principal

    found = Principal(name, ()).name
    assert (found != name) == is_changed
    assert len(found) <= 80
    assert found.isprintable()
    assert Principal(found, ()).name != found or not is_changed
    assert Principal(name + "x", ()).name != found, "different names remain different"


def test_a_log_line_contains_no_character_that_changes_how_it_is_shown() -> None:
    import logging

    from gumshoe.serving.telemetry import JsonFormatter

    text = "".join(map(chr, [*range(0x100), 0x2028, 0x202E, 0x200B, 0xFEFF, 0xDFFF, 0xD800, 0xE0001, 0x1F600, 0x4E2D]))
    record = logging.LogRecord("x", logging.INFO, "", 0, text, (), None)
    line = JsonFormatter().format(record)
    assert line.isprintable()
    assert json.loads(line)["message"] == text
    assert "\u4e2d" in line
