"""The commands `gumshoe rollout` and `gumshoe trajectories`, with a real server and a real index."""

import asyncio
import json
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gumshoe.cli import main
from gumshoe.rollouts.chat_format.chat_settings import ChatSettings
from gumshoe.rollouts.writer import RolloutOptions, read_trajectories, run_to_file
from tests.conftest import CommandResult, find_free_port
from tests.errors import raises
from tests.inference.fake_vllm import (
    Exchange,
    FakeVLLM,
    altered,
    decoded,
    fewer_logprobs,
    forward,
    stall,
    status,
    write_tokenizer,
)
from tests.mail.mailbox import make_index, record
from tests.rollouts.conversations import QWEN2_5, make_tokenizer
from tests.rollouts.test_policy_limits import write_trained
from tests.scenarios.questions import about_documents, question, write_questions
from tests.waiting import wait_until
from tests.warm_processes import start_gumshoe

Run = Callable[..., CommandResult]
COUNT = 6


@dataclass(frozen=True)
class Place:
    """An index, scenarios about it, and a tokenizer."""

    index: Path
    scenarios: Path
    tokenizer: Path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    directory = tmp_path_factory.mktemp("command")
    index = make_index(directory, map(record, range(1, 21))).path.parent
    splits = ["train"] * 4 + ["validation"] * 2
    lines = [question(number, split=split) for number, split in enumerate(splits, 1)]
    scenarios = write_questions(directory / "q.jsonl", lines)
    return Place(index, Path(scenarios), write_tokenizer(directory / "model"))


@pytest.fixture
def server() -> Iterator[FakeVLLM]:
    with FakeVLLM() as server:
        yield server
    assert server.errors == []


def options(place: Place, out: Path, policy: str, **changes: object) -> list[object]:
    """Return the arguments of a rollout. `None` omits an option."""
    given: dict[str, object] = {
        "--index": place.index,
        "--scenarios": place.scenarios,
        "--policy": policy,
        "--out": out,
        "--tokenizer": place.tokenizer,
        "--max-tokens": 400,
        "--max-context": 50_000,
        **{f"--{name.replace('_', '-')}": value for name, value in changes.items()},
    }
    return ["rollout", *(part for name, value in given.items() if value is not None for part in (name, value))]


def adapter(server: FakeVLLM) -> str:
    return f"vllm:{server.address}#adapter"


def groups(out: Path) -> dict[str, list[int]]:
    """Return the samples of each scenario in a file whose lines are all complete."""
    assert out.read_bytes().endswith(b"\n")
    found: dict[str, list[int]] = {}
    for each in read_trajectories(out):
        found.setdefault(each.scenario, []).append(each.sample)
    return found


def test_progress_shows_episodes_speed_and_failures(place: Place, tmp_path: Path) -> None:
    told: list[tuple[float, str | None, float | None]] = []
    out, written = tmp_path / "t.jsonl", list[int]()

    def advance(amount: float = 0, *, note: str | None = None, total: float | None = None) -> None:
        told.append((amount, note, total))
        if amount:
            written.append(out.read_bytes().count(b"\n"))

    with FakeVLLM() as server:
        server.inject(status(400), after=5)
        settings = RolloutOptions(
            place.index, str(place.scenarios), adapter(server), str(place.tokenizer), samples=2, concurrency=2
        )
        report = asyncio.run(run_to_file(settings, out, advance))
    assert (report.done, report.retried) == (2 * COUNT, 1)
    assert sum(amount for amount, _, _ in told) == max(total or 0 for _, _, total in told) == 2 * COUNT
    assert written == [2 * ended for ended in range(1, COUNT + 1)], "a group is in the file as soon as it has ended"
    notes = [note for _, note, _ in told if note]
    counts = [[int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", note)] for note in notes]
    assert all(len(each) in (3, 4) and each[-2] in (0, 1) and each[-1] == 0 for each in counts), notes
    assert len(counts[0]) == 3, "no speed before the first episode has ended"
    assert counts[-1][0] > 0, "tokens per second"
    assert counts[-1][1:] == [0, 1, 0], "running, retried, dropped"


WHOLE = {f"q{number}": [0, 1, 2] for number in range(1, COUNT + 1)}


def test_a_rollout_has_the_limits_of_the_training_unless_others_are_given(
    run: Run, server: FakeVLLM, place: Place, tmp_path: Path
) -> None:
    trained = write_trained(write_tokenizer(tmp_path / "trained"))
    for given, expected in ((None, (6, 120)), (300, (6, 300))):
        out = tmp_path / f"{given}.jsonl"
        ran = run(*options(place, out, adapter(server), tokenizer=trained, max_tokens=given, limit=1))
        assert ran.status == 0, ran.err
        (episode,) = read_trajectories(out)
        assert (episode.settings["max_turns"], episode.settings["max_tokens"]) == expected


def test_a_rollout_writes_complete_groups_and_a_report(
    run: Run, server: FakeVLLM, place: Place, tmp_path: Path
) -> None:
    out = tmp_path / "t.jsonl"
    ran = run(*options(place, out, adapter(server), samples=3, temperature=0.7, top_p=0.9), "--json")
    assert ran.status == 0
    report = json.loads(ran.out)
    assert {name: report[name] for name in ("done", "already_there", "endings", "retried", "dropped")} == {
        "done": 18,
        "already_there": 0,
        "endings": {"answer": 18},
        "retried": 0,
        "dropped": 0,
    }
    assert groups(out) == WHOLE
    assert {each.policy for each in read_trajectories(out)} == {"adapter"}
    assert {each.record.answer for each in read_trajectories(out)} == {f"Body of message {n}" for n in range(1, 7)}
    assert {(each["temperature"], each["top_p"], each["max_tokens"]) for each in server.requests} == {(0.7, 0.9, 400)}


def test_a_chat_model_s_rollout_needs_no_tokenizer(run: Run, place: Place, tmp_path: Path) -> None:
    with FakeVLLM(models=("chat",)) as server:
        ran = run(*options(place, tmp_path / "t.jsonl", f"chat:chat@{server.address}/v1", tokenizer=None))
    assert ran.status == 0
    assert "6 new episodes" in ran.out
    assert "6 answer" in ran.out
    assert not any(span.ids for each in read_trajectories(tmp_path / "t.jsonl") for span in each.spans)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"split": "validation"}, ["q5", "q6"]),
        ({"limit": 2}, ["q1", "q2"]),
        ({"split": "train", "limit": 9}, ["q1", "q2", "q3", "q4"]),
    ],
)
def test_only_the_selected_scenarios_are_run(
    run: Run, server: FakeVLLM, place: Place, tmp_path: Path, changes: dict[str, Any], expected: list[str]
) -> None:
    assert run(*options(place, tmp_path / "t.jsonl", adapter(server), **changes)).status == 0
    assert sorted(groups(tmp_path / "t.jsonl")) == expected


def test_a_second_run_runs_only_missing_groups(run: Run, server: FakeVLLM, place: Place, tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    run(*options(place, out, adapter(server), samples=3, limit=2))
    there = out.read_bytes()
    server.requests.clear()
    report = json.loads(run(*options(place, out, adapter(server), samples=3), "--json").out)
    assert (report["done"], report["already_there"]) == (12, 6)
    assert out.read_bytes().startswith(there)
    assert groups(out) == WHOLE
    assert len(server.requests) == 12 * 3
    server.requests.clear()
    again = run(*options(place, out, adapter(server), samples=3))
    assert (again.status, server.requests) == (0, [])
    assert "0 new episodes" in again.out
    assert "18 existed" in again.out


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"temperature": 0.5}, ": temperature 1.0;"),
        ({"seed": 2, "max_turns": 3}, ": seed 0, max_turns 10;"),
        ({"chat": "{on_bad_call: reply}"}, ": chat {};"),
    ],
)
def test_trajectories_with_other_settings_are_not_reused(
    run: Run, server: FakeVLLM, place: Place, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    out = tmp_path / "t.jsonl"
    run(*options(place, out, adapter(server), limit=2))
    there = out.read_bytes()
    ran = run(*options(place, out, adapter(server), **changes))
    assert (ran.status, ran.code) == (2, "rollouts.other-settings")
    assert f"{out} " in ran.err
    assert says in ran.err
    assert out.read_bytes() == there


def test_trajectories_with_another_index_or_other_weights_are_not_reused(
    run: Run, server: FakeVLLM, place: Place, tmp_path: Path
) -> None:
    out, other = tmp_path / "t.jsonl", make_index(tmp_path / "mail", map(record, range(1, 9))).path.parent
    run(*options(place, out, adapter(server), limit=2))
    there = out.read_bytes()
    ran = run(*options(place, out, adapter(server), index=other))
    assert (ran.status, ran.code, ": index " in ran.err) == (2, "rollouts.other-settings", True)
    assert out.read_bytes() == there
    server.roots = {"adapter": "/adapters/of-another-run"}
    moved = run(*options(place, out, adapter(server)))
    assert (moved.status, moved.code, ": served " in moved.err) == (2, "rollouts.other-settings", True)
    assert out.read_bytes() == there
    server.roots = {}
    lines = [json.loads(line) | {"policy": ""} for line in there.splitlines()]
    for line in lines:
        line["settings"]["weights"] = "0123456789abcdef"  # of an adapter that no longer exists
    out.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    ran = run(*options(place, out, adapter(server)))
    assert (ran.status, ran.code) == (2, "rollouts.other-settings")
    assert ": weights 0123456789abcdef;" in ran.err


def test_groups_with_fewer_samples_are_not_deleted(run: Run, server: FakeVLLM, place: Place, tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    run(*options(place, out, adapter(server), samples=1))
    there = out.read_bytes()
    ran = run(*options(place, out, adapter(server), samples=3))
    assert (ran.status, ran.code) == (2, "rollouts.other-group-size")
    assert re.search(rf"{out} .* 1 .* 3\b", ran.err)
    assert out.read_bytes() == there


def _half_a_line(lines: list[bytes]) -> bytes:
    return b"".join(lines) + lines[0][: len(lines[0]) // 2]


def _a_line_without_its_end(lines: list[bytes]) -> bytes:
    return b"".join(lines)[:-1]


def _half_a_group(lines: list[bytes]) -> bytes:
    return b"".join(lines[:-1])


def _half_a_group_and_half_a_line(lines: list[bytes]) -> bytes:
    return b"".join(lines[:-1]) + lines[-1][:100]


def _half_a_letter(lines: list[bytes]) -> bytes:
    return b"".join(lines[:-1]) + lines[-1][:40] + "ü".encode()[:1]


@pytest.mark.parametrize(
    "cut", [_half_a_line, _a_line_without_its_end, _half_a_group, _half_a_group_and_half_a_line, _half_a_letter]
)
def test_an_incomplete_group_is_run_again_and_the_rest_is_kept(
    run: Run, server: FakeVLLM, place: Place, tmp_path: Path, cut: Callable[[list[bytes]], bytes]
) -> None:
    out = tmp_path / "t.jsonl"
    run(*options(place, out, adapter(server), samples=3, limit=3))
    lines = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(cut(lines))
    kept = b"".join(lines[:6])
    ran = run(*options(place, out, adapter(server), samples=3))
    assert ran.status == 0
    assert out.read_bytes().startswith(kept)
    assert groups(out) == WHOLE
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.jsonl"]


@pytest.mark.parametrize("cut", [_half_a_line, _half_a_group_and_half_a_line, _half_a_letter])
def test_readers_ignore_an_incomplete_last_line(
    run: Run, server: FakeVLLM, place: Place, tmp_path: Path, cut: Callable[[list[bytes]], bytes]
) -> None:
    out = tmp_path / "t.jsonl"
    run(*options(place, out, adapter(server), samples=2, limit=2))
    lines = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(cut(lines))
    expected = len(lines) if cut is _half_a_line else len(lines) - 1
    assert len(list(read_trajectories(out))) == expected
    listed = run("trajectories", "show", out)
    assert listed.status == 0
    assert len(listed.out.splitlines()) == expected


@pytest.mark.parametrize("command", ["rollout", "show"])
@pytest.mark.parametrize("broken", [b"broken\n", b'{"id": "q1"}\n'])
def test_a_damaged_complete_line_is_an_error_with_its_number(
    run: Run, server: FakeVLLM, place: Place, tmp_path: Path, broken: bytes, command: str
) -> None:
    out = tmp_path / "t.jsonl"
    run(*options(place, out, adapter(server), limit=1))
    content = out.read_bytes() + broken
    out.write_bytes(content)
    ran = run(*(options(place, out, adapter(server)) if command == "rollout" else ["trajectories", "show", out]))
    assert (ran.status, ran.code) == (2, "rollouts.invalid-trajectory")
    assert f"{out}:2: " in ran.err
    assert out.read_bytes() == content
    with raises("rollouts.invalid-trajectory", f"{out}:2"):
        list(read_trajectories(out))


def _stall_from_the_fourth(exchange: Exchange) -> None:
    """Answer the questions about the first three messages only."""
    (forward if re.search("message [123] say", decoded(exchange.request["prompt"])) else stall)(exchange)


@pytest.mark.ci
def test_a_killed_and_restarted_run_writes_each_group_once(
    run: Run, server: FakeVLLM, place: Place, tmp_path: Path
) -> None:
    out = tmp_path / "t.jsonl"
    server.inject(_stall_from_the_fourth, times=None)
    arguments = options(place, out, adapter(server), samples=3, concurrency=5)
    process = start_gumshoe(*arguments)
    wait_until(lambda: out.exists() and b"\n" in out.read_bytes(), process)
    process.kill()
    process.communicate()
    lines = out.read_bytes().count(b"\n")
    assert 1 <= lines <= 9
    server.heal()
    report = json.loads(run(*arguments, "--json").out)
    assert report["done"] + report["already_there"] == 18
    assert report["already_there"] == lines - lines % 3
    assert groups(out) == WHOLE
    counts = Counter((each.scenario, each.sample) for each in read_trajectories(out))
    assert set(counts.values()) == {1}


def test_an_interrupt_ends_the_command_at_once(server: FakeVLLM, place: Place, tmp_path: Path) -> None:
    server.inject(stall, times=None, after=4)
    process = start_gumshoe(*options(place, tmp_path / "t.jsonl", adapter(server), samples=3))
    wait_until(lambda: server.under_way > 10, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in said
    server.wait_until_idle()


def test_a_file_is_locked_while_a_run_writes_to_it(run: Run, server: FakeVLLM, place: Place, tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    run(*options(place, out, adapter(server), samples=3, limit=1))
    out.write_bytes(b"".join(out.read_bytes().splitlines(keepends=True)[:2]))  # so that the file is replaced
    server.inject(stall, times=None)
    arguments = options(place, out, adapter(server), samples=3)
    process = start_gumshoe(*arguments)
    try:
        wait_until(lambda: server.under_way > 0, process)
        refused = run(*arguments)
        assert (refused.status, refused.code) == (2, "store.file-in-use")
        assert str(out) in refused.err
        assert out.read_bytes() == b""
        assert len(server.requests) <= 3 * 3 + COUNT * 3, "nothing but what the first run asks for"
    finally:
        process.kill()
        process.communicate()
    server.heal()
    assert run(*arguments).status == 0
    assert groups(out) == WHOLE
    assert [path.name for path in tmp_path.iterdir()] == ["t.jsonl"]


def test_empty_lines_are_removed_and_counted(run: Run, server: FakeVLLM, place: Place, tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    run(*options(place, out, adapter(server), limit=2))
    first, second = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(first + b"\n" + second + b"broken\n")
    ran = run(*options(place, out, adapter(server)))
    assert (ran.code, f"{out}:4: " in ran.err) == ("rollouts.invalid-trajectory", True)
    out.write_bytes(first + b"\n" + second)
    assert run(*options(place, out, adapter(server), limit=2)).status == 0
    assert out.read_bytes() == first + second


def test_dropped_groups_exit_with_75_and_are_run_the_next_time(
    run: Run, server: FakeVLLM, place: Place, tmp_path: Path
) -> None:
    out = tmp_path / "t.jsonl"
    server.inject(altered(fewer_logprobs), times=9, after=4)
    arguments = options(place, out, adapter(server), concurrency=1)
    ran = run(*arguments, "--json")
    assert ran.status == 75
    report = json.loads(ran.out)
    assert (report["done"], report["dropped"], report["causes"]) == (3, 3, {"inference.invalid-answer": 3})
    assert (report["retried"], sorted(report["dropped_groups"])) == (6, ["q2", "q3", "q4"])
    assert ran.code == "rollouts.groups-dropped"
    assert "3 groups" in ran.err
    assert "(3 inference.invalid-answer)" in ran.err
    assert re.search(r"\d+ log-probabilities for \d+ tokens", ran.err)
    assert sorted(groups(out)) == ["q1", "q5", "q6"]
    ran = run(*arguments)
    assert ran.status == 0
    assert "3 new episodes" in ran.out
    assert sorted(groups(out)) == [f"q{number}" for number in range(1, 7)]


def test_a_compressed_output_file_is_rejected(run: Run, place: Place, tmp_path: Path) -> None:
    ran = run(*options(place, tmp_path / "t.jsonl.gz", "vllm:http://127.0.0.1:1"))
    assert (ran.status, ran.code) == (2, "rollouts.compressed-output")
    assert str(tmp_path / "t.jsonl.gz") in ran.err
    assert not (tmp_path / "t.jsonl.gz").exists()


def test_no_file_is_written_if_every_group_is_dropped(run: Run, server: FakeVLLM, place: Place, tmp_path: Path) -> None:
    server.inject(status(400, {"error": {"message": "no room"}}), times=None)
    ran = run(*options(place, tmp_path / "t.jsonl", adapter(server)))
    assert (ran.status, ran.code) == (75, "rollouts.groups-dropped")
    assert "6 groups" in ran.err
    assert "(6 inference.request-rejected)" in ran.err
    assert "no room" in ran.err
    assert (tmp_path / "t.jsonl").read_bytes() == b""


@pytest.fixture(scope="module")
def other_places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Return tokenizers and scenarios that do not fit a rollout, by the kind of mistake."""
    directory = tmp_path_factory.mktemp("other")
    make_tokenizer(QWEN2_5).save_pretrained(directory / "other")
    odd = "{% for m in messages %}[INST]{{ m.content }}{% endfor %}"
    ChatSettings(thinking_budget=9).write(write_tokenizer(directory / "taught"))
    return {
        "OTHER CHAT": directory / "taught",
        "OTHER VOCABULARY": directory / "other",
        "NOWHERE": directory / "nowhere",
        "DOCUMENTS": write_questions(directory / "d.jsonl", [question(1), about_documents(1)]),
        "NO TEMPLATE": write_tokenizer(directory / "bare", template=None),
        "OTHER TEMPLATE": write_tokenizer(directory / "odd", odd),
    }


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"policy": "MISSING"}, "inference.model-not-served", "base, adapter"),
        ({"policy": "gpt-4"}, "inference.invalid-policy", "tiny[#ADAPTER-DIR], local:MODEL"),
        ({"policy": "vllm:http://a:port"}, "inference.invalid-policy", "'vllm:http://a:port'"),
        ({"policy": "chat:gpt-4", "tokenizer": None}, "models.no-api-key", "OPENAI_API_KEY"),
        ({"policy": "chat:gpt-4"}, "inference.tokenizer-not-accepted", "chat"),
        ({"policy": "tiny"}, "inference.tokenizer-not-accepted", "local"),
        ({"tokenizer": None}, "inference.tokenizer-required", "--tokenizer"),
        ({"tokenizer": "NOWHERE"}, "sources.no-such-model-directory", "nowhere"),
        ({"tokenizer": "OTHER VOCABULARY"}, "inference.tokenizer-mismatch", "'adapter'"),
        ({"tokenizer": "NO TEMPLATE"}, "rollouts.no-chat-template", "bare"),
        ({"tokenizer": "OTHER TEMPLATE"}, "rollouts.template-no-tools", "odd"),
        ({"tokenizer": "OTHER CHAT", "chat": "{on_bad_call: reply}"}, "rollouts.other-chat-settings", "taught"),
        ({"index": "NOWHERE"}, "scenarios.no-index", "nowhere"),
        ({"scenarios": "NOWHERE"}, "store.not-found", "nowhere"),
        ({"split": "test"}, "rollouts.no-scenarios", "test"),
        ({"split": "trian"}, "scenarios.unknown-split", "'trian'"),
        ({"scenarios": "DOCUMENTS"}, "environments.not-about-mail", "d1"),
        ({"samples": 0}, "cli.usage", "--samples"),
        ({"top_p": 0}, "rollouts.top-p-zero", "--top-p"),
    ],
)
def test_a_mistake_is_reported_before_any_request(
    run: Run,
    server: FakeVLLM,
    place: Place,
    other_places: dict[str, object],
    tmp_path: Path,
    changes: dict[str, Any],
    code: str,
    says: str,
) -> None:
    places = {**other_places, "MISSING": f"vllm:{server.address}#other"}
    given = {name: places.get(value, value) if isinstance(value, str) else value for name, value in changes.items()}
    out = tmp_path / "t.jsonl"
    policy = str(given.pop("policy", adapter(server)))
    ran = run(*options(place, out, policy, **given))
    assert (ran.status, ran.code) == (2, code)
    assert says in ran.err
    assert not out.exists()
    assert server.requests == []


def test_a_mistake_does_not_change_an_existing_file(run: Run, server: FakeVLLM, place: Place, tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    run(*options(place, out, adapter(server), limit=1))
    content = out.read_bytes() + b'{"half'
    out.write_bytes(content)
    ran = run(*options(place, out, f"vllm:{server.address}#other"))
    assert (ran.status, ran.code) == (2, "rollouts.other-policy")
    assert [word in ran.err for word in (str(out), "adapter", "other")] == [True] * 3
    assert out.read_bytes() == content


def test_an_index_that_cannot_be_read_is_an_error_without_a_traceback(
    run: Run, server: FakeVLLM, place: Place, tmp_path: Path
) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "mail-index.json").write_bytes(b"this is no JSON " * 500)
    ran = run(*options(place, tmp_path / "t.jsonl", adapter(server), index=tmp_path / "index"))
    assert ran.status in {1, 2}
    assert "mail-index.json" in ran.err
    assert not (tmp_path / "t.jsonl").exists()


def test_an_unreachable_server_exits_with_75(run: Run, place: Place, tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{find_free_port()}"
    ran = run(*options(place, tmp_path / "t.jsonl", f"vllm:{address}"))
    assert (ran.status, ran.code) == (75, "inference.server-unreachable")
    assert address in ran.err
    assert not (tmp_path / "t.jsonl").exists()


@pytest.mark.parametrize(("out", "code"), [(".", "store.is-a-directory"), ("missing/t.jsonl", "store.not-found")])
def test_an_output_file_that_cannot_be_written_is_reported_before_any_request(
    run: Run, server: FakeVLLM, place: Place, tmp_path: Path, out: str, code: str
) -> None:
    ran = run(*options(place, tmp_path / out, adapter(server)))
    assert (ran.status, ran.code) == (1, code)
    assert str(tmp_path / out) in ran.err
    assert server.requests == []


def test_an_agent_s_failure_is_shown_and_its_changed_code_is_not_mixed_with_the_old(
    run: Run, server: FakeVLLM, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent is a module of the working directory, which is not on Python's path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    module, out = tmp_path / "slow_agent_of_a_user.py", tmp_path / "t.jsonl"
    module.write_text("import asyncio\n\nasync def run(task):\n    await asyncio.sleep(60)\n")
    words = options(place, out, adapter(server), samples=1, limit=1)
    agent = ["--agent", "{slow_agent_of_a_user:run: {deadline: 0.2}}"]
    ran = run(*words, *agent)
    assert ran.status == 0
    assert "more than 0.2 seconds" in ran.err
    assert run(*words, *agent).status == 0, "nothing is missing"
    assert run(*words).code == "rollouts.other-settings", "Gumshoe's own loop"
    module.write_text(module.read_text().replace("60", "61"))
    ran = run(*words, *agent)
    assert (ran.status, ran.code) == (2, "rollouts.other-agent-code")


@pytest.fixture(scope="module")
def trajectories(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write two groups of two; the second has a slash in its id, and control characters in its text."""
    out = tmp_path_factory.mktemp("show") / "t.jsonl"
    with FakeVLLM() as server:
        with pytest.raises(SystemExit):
            main([str(each) for each in options(place, out, adapter(server), samples=2, limit=2)])
        lines = out.read_text().splitlines(keepends=True)
    fields = [json.loads(line) for line in lines]
    for each in fields:
        if each["scenario"] == "q2":
            each["scenario"] = "week/2"
            each["record"]["answer"] = "\x1b[31m[bold]red[/]"
            each["rewards"] = {"total": 1.5}
            each["segments"] = [{"parent": 0, "shared": 5, "context": [7], "reason": "history edited"}]
            each["spans"][-1]["segment"] = 1
    out.write_text("".join(json.dumps(each) + "\n" for each in fields))
    return out


def test_show_lists_the_trajectories_of_a_file(run: Run, trajectories: Path) -> None:
    ran = run("trajectories", "show", trajectories)
    assert ran.status == 0
    assert sorted(ran.out.splitlines()) == [
        "q1/0 answer, 3 turns: Body of message 1",
        "q1/1 answer, 3 turns: Body of message 1",
        "week/2/0 answer, 3 turns: \\x1b[31m[bold]red[/]",
        "week/2/1 answer, 3 turns: \\x1b[31m[bold]red[/]",
    ]


def test_show_lists_as_json(run: Run, trajectories: Path) -> None:
    listed = json.loads(run("trajectories", "show", trajectories, "--json").out)
    assert sorted((each["scenario"], each["sample"]) for each in listed) == [
        ("q1", 0),
        ("q1", 1),
        ("week/2", 0),
        ("week/2", 1),
    ]
    assert listed[0]["answer"]


def test_show_prints_a_trajectory_turn_by_turn(run: Run, trajectories: Path) -> None:
    ran = run("trajectories", "show", trajectories, "q1/1")
    assert ran.status == 0
    parts = ["q1/1", "You are an assistant", "What does message 1 say?", '"search_inbox", "arguments": {"', "Subject 1"]
    parts += ['"read_email", "arguments": {"', "Subject: Subject 1", '"return_final_answer", "arguments": {"']
    parts += ["answer after 3 turns by adapter"]
    places = [ran.out.find(part) for part in parts]
    assert -1 not in places
    assert places == sorted(places)
    assert "answer: Body of message 1" in ran.out
    assert "1 searches (0 repeated, 0 empty)" in ran.out
    assert "1 found, 1 read" in ran.out
    assert ran.err == ""


def test_show_prints_the_segments_of_a_split_episode(run: Run, trajectories: Path) -> None:
    shown = run("trajectories", "show", trajectories, "week/2/0").out
    begun, last = shown.find("segment 1 history edited"), shown.find("sampled segment 1,")
    assert 0 < shown.find("prompt segment 0,") < begun < last
    assert "segment" not in run("trajectories", "show", trajectories, "q1/0").out


@pytest.mark.parametrize(("wanted", "shown"), [("q1", 2), ("q1/0", 1), ("week/2", 2), ("week/2/1", 1)])
def test_show_accepts_a_scenario_or_one_of_its_samples(run: Run, trajectories: Path, wanted: str, shown: int) -> None:
    assert run("trajectories", "show", trajectories, wanted).out.count("\nanswer: ") == shown
    found = json.loads(run("trajectories", "show", trajectories, wanted, "--json").out)
    assert len(found) == shown
    assert len(found[0]["spans"][1]["ids"]) == len(found[0]["spans"][1]["logprobs"]) > 0


def test_control_characters_are_not_printed(run: Run, trajectories: Path) -> None:
    ran = run("trajectories", "show", trajectories, "week/2/0")
    assert "answer: \\x1b[31m[bold]red[/]\n" in ran.out
    assert "reward total: +1.500" in ran.out
    assert "\x1b" not in ran.out


@pytest.mark.parametrize("wanted", ["q2", "q1/7", "week", "/"])
def test_a_missing_id_is_named(run: Run, trajectories: Path, wanted: str) -> None:
    ran = run("trajectories", "show", trajectories, wanted)
    assert (ran.status, ran.code) == (2, "rollouts.trajectory-not-found")
    assert f"'{wanted}'" in ran.err


def test_a_missing_file_or_a_directory_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "broken.jsonl.gz").write_bytes(b"\x1f\x8b and then nothing")
    for name, exit_status, code in (
        ("missing.jsonl", 2, "store.not-found"),
        ("broken.jsonl.gz", 2, "rollouts.damaged-gzip"),
        (".", 1, "store.is-a-directory"),
    ):
        ran = run("trajectories", "show", tmp_path / name)
        assert (ran.status, ran.code) == (exit_status, code)
        assert str(tmp_path / name) in ran.err
