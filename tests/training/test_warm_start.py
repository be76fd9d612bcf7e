"""Warm starts that are stopped and resumed: with the same weights, and without asking the judge again."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gumshoe.inference.policy_names import TINY, load_tokenizer
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.training.models.base_model import CONFIG, AdapterBase, identify_adapter_base
from gumshoe.training.run_spec import ADAPTER_CONFIG, CHECKPOINT, METADATA, VERDICTS, WARM_START_STATE, check_start
from gumshoe.training.settings_sections import LoraSettings
from gumshoe.training.sft.batch_plan import BatchPlan, order_demonstrations
from gumshoe.training.sft.demonstrations import Demonstration, filter_correct, write_demonstrations
from gumshoe.training.sft.warm_start import (
    DEMONSTRATIONS,
    DONE,
    LEARNED,
    TRAINED,
    WarmStartReport,
    WarmStartSpec,
    _FinishedWarmStart,
    _install,
    _write_records,
)
from tests.conftest import CommandResult
from tests.errors import raises
from tests.inference.fake_vllm import FakeVLLM
from tests.mail.mailbox import make_index, record
from tests.rewards.chat_judge import says, verdict
from tests.scenarios.questions import QUICK, question, write_questions
from tests.tiers import nightly_except
from tests.training.recorded_episodes import (
    SETTINGS,
    correct_answer,
    make_mail,
    record_episodes,
    run_warm_start,
    scenarios,
    settings_of,
    write_episodes,
)
from tests.waiting import wait_until

if TYPE_CHECKING:
    from gumshoe.training.sft.sft_trainer import SftRun


WEIGHTS = "adapter_model.safetensors"
QUICK_SETTINGS = {  # 12 steps of 2 passes
    "lora.dropout": 0.1,
    "warm_start.epochs": 6,
    "warm_start.batch_size": 2,
    "warm_start.learning_rate": 3e-3,
    "optimizer.per_device_train_batch_size": 1,
    "output.save_steps": 3,
}


@pytest.fixture(scope="module")
def mail(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_mail(tmp_path_factory.mktemp("warm-start"))


@pytest.fixture(scope="module")
def shown(mail: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of correct episodes."""
    chat = ChatFormat(load_tokenizer(str(TINY)))
    return write_episodes(tmp_path_factory.mktemp("shown") / "t.jsonl", record_episodes(mail, chat, correct_answer))


@pytest.fixture
def judge_server() -> Iterator[FakeVLLM]:
    """Run a server that answers as a judge."""
    with FakeVLLM(models=("judge",), chat=says(verdict)) as server:
        yield server
    assert server.errors == []


def judge_at(server: FakeVLLM) -> dict[str, Any]:
    settings = {"model": "judge", "url": f"{server.address}/v1", "cache": None, "concurrency": 1, "attempts": 1}
    return {"openai": settings}


def have_equal_weights(one: Path, other: Path) -> bool:
    import torch
    from safetensors.torch import load_file

    file = WEIGHTS if (one / WEIGHTS).exists() else "model.safetensors"
    weights, others = load_file(one / file), load_file(other / file)
    return weights.keys() == others.keys() and all(torch.equal(each, others[name]) for name, each in weights.items())


# The demonstrations of a step.

LENGTHS = st.lists(st.integers(1, 500), min_size=1, max_size=60)


@QUICK
@given(LENGTHS, st.integers(1, 9), st.floats(0.1, 4), st.integers(0, 3))
def test_each_demonstration_is_used_once_before_any_is_used_again(
    lengths: list[int], batch: int, epochs: float, seed: int
) -> None:
    count = len(lengths)
    batch = min(batch, count)
    steps = max(1, round(epochs * count / batch))
    order = order_demonstrations(lengths, batch, steps, seed)
    assert len(order) == steps * batch
    times = [order.count(each) for each in range(count)]
    assert max(times) - min(times) <= 1
    assert order == order_demonstrations(lengths, batch, steps, seed)
    firsts = order[: batch * min(64, count // batch)]
    assert max(lengths[each] for each in order[:batch]) == max(lengths[each] for each in firsts)


def test_the_order_depends_on_the_seed_and_groups_similar_lengths() -> None:
    lengths = [length for length in (10, 1000) for _ in range(32)]
    order = order_demonstrations(lengths, 4, 32, 1)
    assert order != order_demonstrations(lengths, 4, 32, 2)
    assert order[:64] != order[64:]
    mixed = [len({lengths[each] for each in order[place : place + 4]}) for place in range(0, 128, 4)]
    assert max(mixed) == 1


def test_a_step_is_split_into_passes_and_processes() -> None:
    def plan(count: int, **settings: Any) -> tuple[int, int, int, int]:
        made = BatchPlan.of(settings_of(**settings), count)
        return made.steps, made.passes, made.episodes, made.processes

    assert plan(100) == (25, 2, 4, 1)
    assert plan(100, warm_start__epochs=0.5, warm_start__batch_size=12) == (5, 3, 4, 1)
    assert plan(7) == (2, 7, 1, 1), "passes have equal sizes"
    assert plan(100, optimizer__processes=2) == (25, 1, 4, 2)
    assert plan(5, optimizer__processes=2) == (3, 1, 2, 2)
    with raises("training.batch-too-small", "1 episodes", "2 processes"):
        plan(1, optimizer__processes=2)


def of(numbers: Sequence[int], length: int) -> list[Demonstration]:
    """Return demonstrations with `length` tokens, the last 5 of them by the policy."""
    return [
        Demonstration(
            f"s{each}", [(each * 7 + place) % 200 + 10 for place in range(length)], [0] * (length - 5) + [1] * 5
        )
        for each in numbers
    ]


def prepare_run(place: Path, demonstrations: Sequence[Demonstration], **settings: Any) -> "SftRun":
    """Return a trainer on demonstrations, for this process."""
    from gumshoe.training.sft.sft_trainer import SftRun

    place.mkdir(exist_ok=True)
    write_demonstrations(place / DEMONSTRATIONS, demonstrations)
    known = settings_of(**{"model__gradient_checkpointing": False, **settings})
    spec = WarmStartSpec(
        settings=known,
        trajectories="",
        scenarios="",
        searched="",
        base=identify_adapter_base(known),
        start=None,
        before=None,
    )
    return SftRun(spec, place)


@pytest.mark.ci
def test_labels_are_the_sampled_tokens_and_nothing_is_truncated(tmp_path: Path) -> None:
    """TRL truncates to 1,024 tokens by default."""
    demonstrations = of(range(4), 1500)
    warm_start = prepare_run(tmp_path / "p", demonstrations, warm_start__epochs=1, warm_start__batch_size=2)
    by_ids = {tuple(each.ids): each for each in demonstrations}
    seen = []
    for batch in warm_start._make_trainer().get_train_dataloader():
        labels = batch["shift_labels"][0].tolist()
        lengths = batch["packed_row"].lengths
        for ids, scored in zip(batch["input_ids"][0].split(lengths), batch["scored"][0].split(lengths), strict=True):
            each = by_ids[tuple(ids.tolist())]
            assert scored.tolist() == [*map(bool, each.mask[1:]), False]
            assert [labels.pop(0) for _ in range(5)] == each.ids[-5:]
            seen.append(each.scenario)
        assert labels == []
    assert sorted(seen) == ["s0", "s1", "s2", "s3"]


@pytest.mark.ci
def test_rows_repeat_demonstrations_in_their_order() -> None:
    from gumshoe.training.sft.sft_trainer import training_rows

    demonstrations = of(range(5), 20)
    plan = BatchPlan(steps=4, passes=1, episodes=3, processes=1)
    rows = training_rows(demonstrations, plan, 1)
    expected = [demonstrations[each].ids for each in order_demonstrations([20] * 5, 3, 4, 1)]
    assert [each["input_ids"] for each in rows] == expected


# Stopping and resuming.


@pytest.mark.ci
@pytest.mark.parametrize("weights", nightly_except({"lora"}, ["lora", "full"]))
def test_a_stopped_warm_start_resumes_to_the_same_weights(tmp_path: Path, weights: str) -> None:
    settings: dict[str, Any] = {name.replace(".", "__"): value for name, value in QUICK_SETTINGS.items()}
    settings["warm_start__weights"] = weights
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    prepare_run(whole, of(range(4), 40), **settings).train()
    again = prepare_run(stopped, of(range(4), 40), **settings)
    on_pass = again.on_pass

    def pass_and_stop() -> None:
        on_pass()
        if again._lifecycle.step == 4:
            signal.raise_signal(signal.SIGTERM)

    again.on_pass = pass_and_stop  # type: ignore[method-assign]
    with raises("training.stopped", "5 of 12"):
        again.train()
    assert not (stopped / TRAINED).exists()
    assert [each.parent.name for each in stopped.glob(f"*/{METADATA}")] == ["checkpoint-5"], "older ones are deleted"
    (stopped / f"{CHECKPOINT}9").mkdir()  # as left by a process that was killed while it saved
    prepare_run(stopped, of(range(4), 40), **settings).train()
    assert have_equal_weights(whole / TRAINED, stopped / TRAINED), "bit by bit, with dropout"
    assert (whole / LEARNED).read_bytes() == (stopped / LEARNED).read_bytes()
    prepare_run(stopped, of(range(4), 40), **settings).train()
    assert have_equal_weights(whole / TRAINED, stopped / TRAINED), "a finished run stays the same"


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"model__quantization": "nf4"}, marks=pytest.mark.nightly),
        pytest.param({"model__quantization": "nf4", "model__gradient_checkpointing": True}, marks=pytest.mark.ci),
        pytest.param({"model__dtype": "bfloat16", "model__gradient_checkpointing": True}, marks=pytest.mark.nightly),
    ],
    ids=["nf4", "nf4 recomputing", "bfloat16 recomputing"],
)
def test_it_learns_with_every_dtype_and_quantization(tmp_path: Path, more: dict[str, Any]) -> None:
    import torch
    from safetensors.torch import load_file

    settings: dict[str, Any] = {"warm_start__epochs": 15, "warm_start__learning_rate": 1e-2, **more}
    warm_start = prepare_run(tmp_path / "p", of(range(4), 40), **settings)
    warm_start.train()
    assert len(warm_start._losses) == 15
    assert warm_start._losses[-1] < warm_start._losses[0] / 2
    saved = load_file(tmp_path / "p" / TRAINED / WEIGHTS)
    assert {each.dtype for each in saved.values()} == {torch.float32}, "small updates are not rounded away"


@pytest.mark.ci
def test_only_the_upper_layers_of_a_model_are_trained(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    settings: dict[str, Any] = {"warm_start__weights": "full", "warm_start__layers": 1, "model__dtype": "bfloat16"}
    settings |= {"warm_start__epochs": 10, "warm_start__learning_rate": 1e-2}
    warm_start = prepare_run(tmp_path / "p", of(range(4), 40), **settings)
    warm_start.train()
    assert warm_start._losses[-1] < warm_start._losses[0] / 2
    before, after = load_file(TINY / "model.safetensors"), load_file(tmp_path / "p" / TRAINED / "model.safetensors")
    assert before.keys() == after.keys()
    assert {each.dtype for each in after.values()} == {torch.bfloat16}
    changed = {name for name, each in after.items() if not torch.equal(each, before[name].bfloat16())}
    top = max(int(name.split(".")[2]) for name in before if ".layers." in name)
    assert changed <= {"model.norm.weight", *(name for name in before if f".layers.{top}." in name)}
    assert f"model.layers.{top}.mlp.down_proj.weight" in changed
    with raises("training.too-few-layers", "99", f"{top + 1} layers"):
        prepare_run(tmp_path / "q", of(range(4), 40), **{**settings, "warm_start__layers": 99}).train()


def test_each_verdict_is_saved_and_requested_once(mail: Path, judge_server: FakeVLLM, tmp_path: Path) -> None:
    by_id = {each.id: each for each in scenarios(mail)}
    chat = ChatFormat(load_tokenizer(str(TINY)))
    wrong = list(by_id)[1]
    episodes = record_episodes(mail, chat, lambda each: "on Monday" if each.id == wrong else each.answer)
    answer = judge_server.chat

    released, asked = threading.Event(), list[dict[str, Any]]()

    def end_at_the_third(request: dict[str, Any]) -> dict[str, Any]:
        asked.append(request)
        if len(asked) == 3:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
            released.wait()
        return answer(request)

    judge_server.chat = end_at_the_third
    kept = tmp_path / VERDICTS
    with raises("training.stopped-while-judging"):
        filter_correct(episodes, by_id, judge_at(judge_server), kept)
    released.set()
    assert (len(kept.read_text().splitlines()), len(asked)) == (2, 3)
    with kept.open("a") as file:
        file.write('{"episode": "9f')  # as left by a process that was killed while it wrote
    found = filter_correct(episodes, by_id, judge_at(judge_server), kept)
    assert [each.scenario for each in found] == [each for each in by_id if each != wrong]
    assert len(asked) == 3 + len(episodes) - 2, "only missing verdicts are requested"
    assert filter_correct(episodes, by_id, "exact", kept) == found
    assert len(asked) == 3 + len(episodes) - 2


def test_a_missing_verdict_ends_it_and_keeps_the_others(
    mail: Path, shown: Path, judge_server: FakeVLLM, tmp_path: Path
) -> None:
    answer = judge_server.chat
    judge_server.chat = lambda request: answer(request) if len(judge_server.requests) != 2 else {"choices": []}
    out = tmp_path / "out"
    with raises("training.no-verdict", "--resume"):
        run_warm_start(mail, shown, out, evaluation__judge=judge_at(judge_server))
    assert len((out / WARM_START_STATE / VERDICTS).read_text().splitlines()) == 3
    assert len(judge_server.requests) == 4
    assert [each.name for each in out.iterdir()] == [WARM_START_STATE], "nothing that looks like an adapter"


# Rejected inputs.


@pytest.fixture(scope="module")
def unfinished(mail: Path, shown: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Return a directory with a warm start whose judge did not answer, and the settings of that judge."""
    out = tmp_path_factory.mktemp("unfinished")
    judge = {"openai": {"model": "none", "url": "http://127.0.0.1:9/v1", "cache": None, "attempts": 1}}
    with raises("training.no-verdict"):
        run_warm_start(mail, shown, out, evaluation__judge=judge)
    return out, judge


@pytest.mark.parametrize(
    ("more", "changed"),
    [
        ({"warm_start__epochs": 3}, "(warm_start.epochs)"),
        ({"lora__rank": 8, "data__seed": 5}, "(lora.rank, data.seed)"),
        ({"evaluation__judge": "exact"}, "(evaluation.judge)"),
        ({"model__name": "COPY", "model__quantization": "nf4"}, "(model.name, model.quantization)"),
    ],
)
def test_resuming_with_other_settings_is_rejected(
    mail: Path, shown: Path, unfinished: tuple[Path, Any], more: dict[str, Any], changed: str
) -> None:
    out, judge = unfinished
    more = {name: str(TINY) if value == "COPY" else value for name, value in more.items()}
    with raises("training.other-settings", out, changed):
        run_warm_start(mail, shown, out, resume=True, **{"evaluation__judge": judge, **more})


def test_settings_without_effect_on_the_result_may_change(
    mail: Path, shown: Path, unfinished: tuple[Path, Any]
) -> None:
    """For example the size of passes, after running out of memory."""
    out, judge = unfinished
    more = {"optimizer__per_device_train_batch_size": 1, "output__save_steps": 7, "rollouts__temperature": 2}
    with raises("training.no-verdict"):
        run_warm_start(
            mail, shown, out, resume=True, evaluation__judge=judge, model__gradient_checkpointing=False, **more
        )


def test_resuming_with_other_inputs_is_rejected(
    mail: Path, shown: Path, unfinished: tuple[Path, Any], tmp_path: Path
) -> None:
    out, judge = unfinished
    fewer = write_episodes(tmp_path / "fewer.jsonl", [])
    fewer.write_text("".join(shown.read_text().splitlines(keepends=True)[:2]))
    with raises("training.other-settings", "(the trajectories)"):
        run_warm_start(mail, fewer, out, resume=True, evaluation__judge=judge)
    other = make_mail(tmp_path)
    lines = (other / "scenarios.jsonl").read_text().splitlines(keepends=True)
    (other / "scenarios.jsonl").write_text("".join(lines[1:]))
    with raises("training.other-settings", "(the scenarios)"):
        run_warm_start(other, shown, out, resume=True, evaluation__judge=judge)
    spec = out / WARM_START_STATE / "run.json"
    before = spec.read_text()
    try:
        spec.write_text(json.dumps(json.loads(before) | {"start": "0", "searched": "0"}))
        with raises("training.other-settings", "(the index, the weights"):
            run_warm_start(mail, shown, out, resume=True, evaluation__judge=judge)
        spec.write_text("{}")
        with raises("training.other-version", spec):
            run_warm_start(mail, shown, out, resume=True, evaluation__judge=judge)
    finally:
        spec.write_text(before)


def test_an_unfinished_warm_start_cannot_be_overwritten_or_used(
    mail: Path, shown: Path, unfinished: tuple[Path, Any], tmp_path: Path
) -> None:
    out, judge = unfinished
    with raises("training.warm-start-unfinished", out):
        run_warm_start(mail, shown, out, evaluation__judge=judge)
    with raises("adapters.start-unfinished", "lora.start", out):
        check_start(LoraSettings(start=out))
    (tmp_path / "a.txt").touch()
    with raises("training.directory-not-empty", tmp_path):
        run_warm_start(mail, shown, tmp_path)
    with raises("training.nothing-to-resume", tmp_path):
        run_warm_start(mail, shown, tmp_path, resume=True)


@pytest.mark.parametrize(
    ("more", "code", "values"),
    [
        ({"lora__target_modules": ["lm_head"]}, "settings.lm-head-not-trained", ("lora.target_modules",)),
        (
            {"model__max_context": 100_000},
            "training.context-exceeds-model",
            ("model.max_context 100,000", "8,192 tokens"),
        ),
        ({"optimizer__processes": 5}, "training.batch-too-small", ("4 episodes", "5 processes")),
        ({"warm_start__layers": 2}, "settings.layers-without-full", ("warm_start.layers 2",)),
        (
            {"warm_start__weights": "full", "model__quantization": "nf4"},
            "settings.full-quantized",
            ("model.quantization nf4",),
        ),
        (
            {"warm_start__weights": "full", "optimizer__distribution": "fsdp2", "optimizer__processes": 2},
            "settings.full-sharded",
            ("optimizer.distribution fsdp2",),
        ),
        ({"warm_start__weights": "full", "lora__start": "a"}, "settings.full-with-adapter", ("lora.start is a",)),
    ],
)
def test_unusable_settings_are_rejected_before_loading(
    mail: Path, shown: Path, tmp_path: Path, more: dict[str, Any], code: str, values: tuple[str, ...]
) -> None:
    with raises(code, *values):
        run_warm_start(mail, shown, tmp_path, **more)


# Other arguments in the same directory, after a usage error.


def test_what_cannot_be_trained_on_is_rejected_before_the_judge_is_asked(
    mail: Path, shown: Path, tmp_path: Path
) -> None:
    judge = {"openai": {"model": "none", "url": "http://127.0.0.1:9/v1", "cache": None, "attempts": 1}}
    rejected: tuple[tuple[str, dict[str, Any]], ...] = (
        ("training.other-prompt", {"rollouts__max_turns": 9}),
        ("training.batch-too-small", {"optimizer__processes": 5}),
        ("training.episodes-too-long", {"model__max_context": 70}),
    )
    for code, more in rejected:
        with raises(code):
            run_warm_start(mail, shown, tmp_path, evaluation__judge=judge, **more)
        assert not list(tmp_path.iterdir())


def test_verdicts_are_kept_if_other_arguments_are_needed(mail: Path, judge_server: FakeVLLM, tmp_path: Path) -> None:
    chat, wrong = ChatFormat(load_tokenizer(str(TINY))), next(iter(scenarios(mail))).id
    episodes = record_episodes(mail, chat, lambda each: "on Monday" if each.id == wrong else each.answer)
    file, out, judge = write_episodes(tmp_path / "t.jsonl", episodes), tmp_path / "out", judge_at(judge_server)
    for processes, resume in ((4, False), (4, True), (4, False)):
        with raises("training.batch-too-small", "3 episodes"):
            run_warm_start(mail, file, out, resume=resume, evaluation__judge=judge, optimizer__processes=processes)
        assert [each.name for each in (out / WARM_START_STATE).iterdir()] == [VERDICTS]
        assert len(judge_server.requests) == 4
    other = judge_at(judge_server)
    other["openai"]["max_tokens"] = 500
    with raises("training.batch-too-small", "3 episodes"):
        run_warm_start(mail, file, out, evaluation__judge=other, optimizer__processes=4)
    assert len(judge_server.requests) == 8, "verdicts of another judge do not count"


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_a_directory_stays_usable_if_the_trainer_refuses_the_settings(
    mail: Path, shown: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_checkpoint: bool
) -> None:
    def start(module: str, spec: Path, *_: object) -> None:
        assert module
        (spec.parent / f"{CHECKPOINT}1").mkdir(exist_ok=True)
        if has_checkpoint:
            (spec.parent / f"{CHECKPOINT}1" / METADATA).write_text("{}")

    monkeypatch.setattr("gumshoe.training.sft.warm_start.start_trainers", start)
    monkeypatch.setattr("gumshoe.training.sft.warm_start.wait_for_trainers", lambda *_: 2)
    with raises("training.trainer-refused"):
        run_warm_start(mail, shown, tmp_path)
    with raises("training.warm-start-unfinished" if has_checkpoint else "training.trainer-refused"):
        run_warm_start(mail, shown, tmp_path, warm_start__epochs=1)


# The command.


def words(mail: Path, **more: Any) -> list[object]:
    known = ["--index", mail / "index", "--scenarios", mail / "scenarios.jsonl", "--model", "tiny"]
    flags = {**SETTINGS, **QUICK_SETTINGS, **more}
    flags = {name: value for name, value in flags.items() if name != "model.name"}
    return [*known, *(word for name, value in flags.items() for word in ("--set", f"{name}={value}"))]


def find_trainer(place: Path) -> int | None:
    """Return the id of the trainer process of a directory."""
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = each.read_bytes().split(b"\0")
        except OSError:
            continue
        is_trainer = b"gumshoe.training.sft.sft_trainer" in arguments and b"gumshoe.inference.reaper" not in arguments
        if is_trainer and any(str(place).encode() in word for word in arguments):
            return int(each.parent.name)
    return None


@pytest.mark.parametrize("complete", [ADAPTER_CONFIG, CONFIG])
def test_the_file_that_makes_a_warm_start_complete_is_installed_last(
    complete: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, moved, replace = {"a.json", WEIGHTS, complete}, list[str](), Path.replace
    for name in names:
        place = tmp_path / WARM_START_STATE / TRAINED / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("")

    def replace_and_note(source: Path, target: Path) -> Path:
        moved.append(source.name)
        return replace(source, target)

    monkeypatch.setattr(Path, "replace", replace_and_note)
    _install(tmp_path)
    assert (set(moved), moved[-1]) == (names, complete)
    assert {each.name for each in tmp_path.iterdir()} == names


def test_the_card_of_a_warm_start_knows_its_base_model(tmp_path: Path) -> None:
    known, name = settings_of(), "outputs/base"  # a directory that has the form of a name on the hub
    spec = WarmStartSpec(
        settings=known,
        trajectories="",
        scenarios="",
        searched="",
        base=AdapterBase(name=name, quantization="none", fingerprint="4e2c"),
        start=None,
        before=None,
    )
    report = WarmStartReport(episodes=1, right=1, too_long=0, tokens=9, steps=1, loss=1, seconds=1)
    (tmp_path / ADAPTER_CONFIG).write_text(json.dumps({"base_model_name_or_path": name, "r": 4}))
    _write_records(tmp_path, _FinishedWarmStart(spec=spec, report=report))
    assert "base_model:" not in (tmp_path / "README.md").read_text()


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("full", [(), ("--full",)], ids=["adapter", "model"])
def test_a_killed_warm_start_resumes_to_the_same_weights(
    mail: Path,
    shown: Path,
    judge_server: FakeVLLM,
    tmp_path: Path,
    gumshoe: Callable[..., CommandResult],
    full: tuple[str, ...],
) -> None:
    judge = json.dumps(judge_at(judge_server))
    whole, out = tmp_path / "whole", tmp_path / "out"
    typed = ["warm-start", shown, *words(mail), *full, "--judge", judge]
    done = gumshoe(*typed, "--out", whole, "--json")
    assert done.status == 0, done.err
    asked = len(judge_server.requests)
    assert asked == 4

    def ended(number: signal.Signals, seen: Callable[[], object], *, trainer: bool) -> int:
        """Run the command, send it or its trainer a signal once `seen` returns true, and return its exit status."""
        command = [sys.executable, "-m", "gumshoe", *map(str, typed), "--out", str(out), "--resume"]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            wait_until(seen, process)
            pid = find_trainer(out) if trainer else process.pid
            assert pid is not None
            os.kill(pid, number)
            return process.wait()

    def at(step: int) -> Callable[[], object]:
        return lambda: list((out / WARM_START_STATE).glob(f"{CHECKPOINT}{step}/optimizer.pt"))

    assert ended(signal.SIGKILL, lambda: (out / WARM_START_STATE / VERDICTS).exists(), trainer=False) == -signal.SIGKILL
    assert ended(signal.SIGKILL, at(3), trainer=True) == 75
    assert ended(signal.SIGTERM, at(6), trainer=False) == 75
    assert not (out / ADAPTER_CONFIG).exists()
    assert not (out / CONFIG).exists()
    finished = gumshoe(*typed, "--out", out, "--resume", "--json")
    assert finished.status == 0, finished.err
    assert have_equal_weights(whole, out)
    assert len(judge_server.requests) <= 2 * asked + 1, "saved verdicts are not requested again"
    assert sorted(each.name for each in out.iterdir()) == sorted(each.name for each in whole.iterdir())
    again = gumshoe(*typed, "--out", out, "--resume", "--json")
    assert (again.status, "finished" in again.err) == (0, True)
    assert json.loads(again.out) == json.loads(finished.out)
    other = gumshoe(*typed, "--out", out, "--resume", "--set", "warm_start.epochs=9")
    assert (other.status, other.code) == (2, "training.other-settings")
    assert "(warm_start.epochs)" in other.err


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_two_processes_train_the_same_weights_as_one(
    mail: Path, shown: Path, tmp_path: Path, gumshoe: Callable[..., CommandResult]
) -> None:
    import torch
    from safetensors.torch import load_file

    for number in (1, 2):
        more = {"optimizer.processes": number, "lora.dropout": 0}
        ended = gumshoe("warm-start", shown, *words(mail, **more), "--out", tmp_path / str(number))
        assert ended.status == 0, ended.err
    one, two = (load_file(tmp_path / name / WEIGHTS) for name in "12")
    for name, value in one.items():
        assert torch.allclose(value, two[name], atol=1e-4), name


@pytest.mark.nightly
def test_episodes_of_a_chat_model_are_recorded_and_trained_on(
    tmp_path: Path, run: Callable[..., CommandResult]
) -> None:
    """Both commands run as a user runs them, with the trainer in a process of its own."""
    index = make_index(tmp_path, map(record, range(1, 9))).path.parent
    splits = ["train"] * 3 + ["validation"]
    asked = write_questions(tmp_path / "q.jsonl", [question(each, split=split) for each, split in enumerate(splits, 1)])
    known = ["--index", index, "--scenarios", asked]
    with FakeVLLM(models=("chat",)) as server:
        policy = f"chat:chat@{server.address}/v1"
        shown = run("rollout", *known, "--policy", policy, "--split", "train", "--out", tmp_path / "shown.jsonl")
    assert shown.status == 0, shown.err
    out = tmp_path / "warm"
    done = run("warm-start", tmp_path / "shown.jsonl", *known, "--model", "tiny", "--out", out, "--json")
    assert done.status == 0, done.err
    report = json.loads(done.out)
    assert (report["episodes"], report["right"], report["steps"]) == (3, 3, 2)
    assert (out / DONE).exists()
    check_start(LoraSettings(start=out))
