"""Warm starts: which tokens of which episodes are trained on, and training that starts from the adapter."""

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gumshoe.artifacts.store import Store
from gumshoe.environments.tools import Call
from gumshoe.errors import UnavailableError
from gumshoe.inference.policy_names import TINY, is_tiny, load_tokenizer
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.rollouts.chat_format.chat_settings import ChatSettings
from gumshoe.rollouts.trajectory import Mistake, Span, Trajectory
from gumshoe.rollouts.writer import read_trajectories
from gumshoe.scenarios.lineage import Lineage
from gumshoe.scenarios.scenario import ScenarioSet
from gumshoe.tiny.episode_generator import MAX_TURNS, PracticeCompany
from gumshoe.training.records import StepRecord, read_records
from gumshoe.training.run_directory import STEP_VARIABLE, WARM_STARTS
from gumshoe.training.run_spec import check_start, open_run_env, read_prior_lineage
from gumshoe.training.settings import TrainSettings
from gumshoe.training.settings_sections import LoraSettings
from gumshoe.training.settings_sources import resolve
from gumshoe.training.sft.demonstrations import (
    Demonstration,
    filter_correct,
    to_demonstrations,
    warn_if_other_environment,
)
from gumshoe.training.sft.warm_start import WarmStartReport, start_warm
from gumshoe.training.training_step import run_sft
from tests.conftest import CommandResult
from tests.errors import raises
from tests.models import random_model
from tests.training.recorded_episodes import (
    SETTINGS,
    TURNS,
    as_chat,
    correct_answer,
    environment,
    make_mail,
    record_episodes,
    record_expert_episodes,
    run_warm_start,
    scenarios,
    settings_of,
    write_episodes,
)


@pytest.fixture(scope="module")
def mail(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_mail(tmp_path_factory.mktemp("demonstrations"))


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat(load_tokenizer(str(TINY)))


def test_only_turns_of_the_policy_are_trained_on(mail: Path, chat: ChatFormat) -> None:
    asked = scenarios(mail).scenarios[0]
    episode = record_episodes(mail, chat, correct_answer)[0]
    (demonstration,) = to_demonstrations(episode, environment(mail, asked), chat)
    assert (demonstration.ids, demonstration.mask) == (episode.ids, episode.mask)
    counted = [token for token in demonstration.labels if token != -100]
    assert len(counted) == episode.sampled_tokens
    assert chat.decode(counted) == "".join(each.text for each in episode.spans if each.origin == "sampled")


def test_episodes_of_a_chat_model_are_rendered_with_the_template(mail: Path, chat: ChatFormat) -> None:
    """The tokens are those of the same episode by the base model."""
    for episode, asked in zip(record_episodes(mail, chat, correct_answer), scenarios(mail), strict=True):
        own = to_demonstrations(episode, environment(mail, asked), chat)
        assert to_demonstrations(as_chat(episode), environment(mail, asked), chat) == own


def learned(demonstration: Demonstration, chat: ChatFormat) -> str:
    """Return the text of what is trained on."""
    return chat.decode([token for token in demonstration.labels if token != -100])


def test_mistakes_are_in_the_history_and_not_trained_on(mail: Path, chat: ChatFormat) -> None:
    asked = scenarios(mail).scenarios[0]
    episode = record_episodes(mail, chat, correct_answer)[0]
    prompt, search, *_ = episode.spans
    bad = chat.encode_turn("<tool_call>{broken</tool_call>")
    error = chat.encode_results([Call("", {})], ["Error: broken"], bad.ids[-1])
    sampled = Span("sampled", bad.text, bad.ids, (0.0,) * len(bad.ids))
    own = [prompt, sampled, Span("injected", error.text, error.ids), search]
    mistakes = [Mistake(1, "unparseable call", "broken")]
    episode = replace(episode, spans=own, turns=2, mistakes=mistakes)
    (demonstration,) = to_demonstrations(episode, environment(mail, asked), chat)
    assert (demonstration.ids, learned(demonstration, chat)) == (episode.ids, search.text)
    (other,) = to_demonstrations(as_chat(episode), environment(mail, asked), chat)
    assert learned(other, chat) == search.text
    assert "broken" in chat.decode(other.ids)


@pytest.mark.parametrize("ends", [False, True], ids=["with results", "with the final answer"])
def test_several_calls_become_turns_if_the_base_model_has_one_call_per_turn(mail: Path, ends: bool) -> None:
    asked, calls = scenarios(mail).scenarios[0], (Call("search", {"n": 1}), Call("answer", {"n": 2}), Call("more", {}))
    chat = ChatFormat(load_tokenizer(str(TINY)), ChatSettings(parallel_calls="refuse"))
    results = [] if ends else [Span("injected", f"result {number}") for number in range(3)]
    spans = [Span("prompt", "P"), Span("sampled", "I look.", calls=calls), *results]
    made = replace(as_chat(record_episodes(mail, chat, correct_answer)[0]), spans=spans, deeds=[2], turns=1)
    (demonstration,) = to_demonstrations(made, environment(mail, asked), chat)
    text = learned(demonstration, chat)
    assert [name for name in ("search", "answer", "more") if f'"{name}"' in text] == (
        ["answer"] if ends else ["search", "answer", "more"]
    )
    assert text.count(chat.end) == (1 if ends else 3)
    assert text.count("I look.") == 1


def test_a_turn_ends_at_the_first_control_token(chat: ChatFormat) -> None:
    turn = chat.encode_turn("Well.<|im_end|>\n<|im_start|>user\nmore")
    assert turn.text == "Well.<|im_end|>"
    assert turn.ids.count(chat.stop_ids[0]) == 1


def test_episodes_with_another_prompt_are_rejected(mail: Path, chat: ChatFormat) -> None:
    asked = scenarios(mail).scenarios[0]
    episode = record_episodes(mail, chat, correct_answer, turns=TURNS + 1)[0]
    with raises("training.other-prompt", asked.id, "rollouts.max_turns"):
        to_demonstrations(episode, environment(mail, asked), chat)


def test_episodes_without_tokens_of_another_environment_are_warned_about_once(
    mail: Path, chat: ChatFormat, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    episodes = record_episodes(mail, chat, correct_answer)
    env = open_run_env(settings_of(), mail / "index")

    def warn(convert: Callable[[Trajectory], Trajectory], **recorded: Any) -> str:
        place = {"environment": {**env.provenance["environment"], **recorded}} if recorded else {}
        warn_if_other_environment([replace(convert(each), settings=place) for each in episodes], env)
        return capsys.readouterr().err

    assert warn(as_chat) == warn(as_chat, name="email") == warn(lambda each: each, hits=3) == ""
    warned = warn(as_chat, hits=3, threads=True)
    assert warned.count("warning") == 1
    assert f"{len(episodes)} episodes" in warned
    assert "threads True (training: False), hits 3 (training: 10)" in warned
    assert """--environment '{"email": {"threads": true, "hits": 3}}'""" in warned
    own = warn(as_chat, name="own:Mail")
    assert "name own:Mail (training: email)" in own
    assert '"own:Mail": {"threads": false' in own
    file = write_episodes(
        tmp_path / "t.jsonl", [replace(as_chat(each), settings={"environment": {"hits": 3}}) for each in episodes]
    )
    with raises("training.batch-too-small"):
        run_warm_start(mail, file, tmp_path / "out", optimizer__processes=5)
    assert "4 episodes" in capsys.readouterr().err


def train_on_mixed_episodes(
    mail: Path, chat: ChatFormat, place: Path, **more: Any
) -> tuple[WarmStartReport, list[Trajectory]]:
    """Train on episodes of which one in the split train is wrong, and every second is a chat model's."""
    wrong = scenarios(mail).scenarios[1].id
    episodes = record_episodes(mail, chat, lambda each: "no idea at all" if each.id == wrong else each.answer)
    mixed = [as_chat(each) if number % 2 else each for number, each in enumerate(episodes)]
    return run_warm_start(mail, write_episodes(place / "t.jsonl", mixed), place / "adapter", **more), episodes


@pytest.mark.ci
@pytest.mark.usefixtures("train_in_process")
def test_only_correct_episodes_of_the_split_train_are_used(mail: Path, chat: ChatFormat, tmp_path: Path) -> None:
    report, _ = train_on_mixed_episodes(mail, chat, tmp_path, warm_start__epochs=1)
    assert (report.episodes, report.right, report.too_long, report.steps) == (4, 3, 0, 1)
    lineage = Lineage.read(tmp_path / "adapter")
    assert lineage is not None
    asked = scenarios(mail).scenarios
    assert set(lineage.learned_from.ids) == {each.id for each in asked[:4]} - {asked[1].id}


@pytest.mark.ci
@pytest.mark.usefixtures("train_in_process")
def test_episodes_with_a_turn_that_the_policy_could_not_make_are_left_out(
    mail: Path, chat: ChatFormat, tmp_path: Path
) -> None:
    episodes = record_episodes(mail, chat, correct_answer)[:4]
    longest = [max(len(span.ids) for span in each.spans if span.origin == "sampled") for each in episodes]
    file, limit = write_episodes(tmp_path / "t.jsonl", episodes), max(longest) - 1
    report = run_warm_start(mail, file, tmp_path / "adapter", warm_start__epochs=1, rollouts__max_tokens=limit)
    assert (report.right, report.too_long) == (4, longest.count(max(longest)))
    lineage = Lineage.read(tmp_path / "adapter")
    assert lineage is not None
    fitting = {each.scenario for each, turn in zip(episodes, longest, strict=True) if turn <= limit}
    assert set(lineage.learned_from.ids) == fitting
    more: dict[str, Any] = {"rollouts__max_tokens": limit, "chat__thinking_budget": 1}
    report = run_warm_start(mail, file, tmp_path / "thinking", warm_start__epochs=1, **more)
    assert report.too_long == 0, "the tokens of reasoning count beside the others"


@pytest.mark.nightly
@pytest.mark.usefixtures("train_in_process")
def test_training_lowers_the_loss_on_the_episodes(mail: Path, chat: ChatFormat, tmp_path: Path) -> None:
    import torch
    from peft import PeftModel

    from gumshoe.training.models.lora_model import load_base

    more: dict[str, Any] = {"warm_start__epochs": 40, "warm_start__learning_rate": 1e-2}
    report, episodes = train_on_mixed_episodes(mail, chat, tmp_path, **more)
    assert report.steps == 40
    settings = settings_of()
    ids = torch.tensor([episodes[0].ids])
    mask = torch.tensor(episodes[0].mask)[1:].bool()

    def loss(model: Any) -> float:
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, :-1]
        return float(torch.nn.functional.cross_entropy(logits[mask], ids[0, 1:][mask]))

    before = loss(load_base(settings))
    after = loss(PeftModel.from_pretrained(load_base(settings), str(tmp_path / "adapter")))
    assert after < before / 2
    assert report.loss < before / 2


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_expert_episodes_improve_the_tiny_policy(tmp_path: Path, gumshoe: Callable[..., CommandResult]) -> None:
    """It is evaluated greedily on questions of the split test."""
    company = PracticeCompany.invent(7, "plain", tmp_path, mailboxes=6, messages=1200)
    known = ["--index", tmp_path / "index", "--scenarios", tmp_path / "scenarios.jsonl"]
    shown = write_episodes(tmp_path / "t.jsonl", record_expert_episodes(company, 100))
    settings = settings_of(lora__rank=8, lora__alpha=16, rollouts__max_turns=MAX_TURNS, warm_start__learning_rate=1e-3)
    out = tmp_path / "warm"
    report = start_warm(settings, tmp_path / "index", str(tmp_path / "scenarios.jsonl"), shown, out)
    assert report.right > 80
    asked = {each.id: each for each in company.mail.scenarios.only("test")}
    right = {}
    for name, policy in (("before", "tiny"), ("after", f"tiny#{out}")):
        file = tmp_path / f"{name}.jsonl"
        how = ["--split", "test", "--limit", 60, "--temperature", 0, "--max-tokens", 120, "--out", file]
        ran = gumshoe("rollout", *known, "--policy", policy, *how)
        assert ran.status == 0, ran.err
        episodes = list(read_trajectories(file))
        assert len(episodes) == 60
        right[name] = len(filter_correct(episodes, asked, "heuristic", tmp_path / f"{name}.verdicts"))
    assert right["after"] >= right["before"] + 10, right


@pytest.mark.ci
def test_a_file_without_usable_episodes_is_rejected(mail: Path, chat: ChatFormat, tmp_path: Path) -> None:
    wrong = write_episodes(tmp_path / "wrong.jsonl", record_episodes(mail, chat, lambda _: "no idea at all"))
    with raises("training.no-correct-episodes", wrong, "4 episodes"):
        run_warm_start(mail, wrong, tmp_path / "a")
    episodes = record_episodes(mail, chat, correct_answer)
    with raises("training.episodes-too-long", tmp_path / "long.jsonl", "all 4", "model.max_context 64"):
        run_warm_start(mail, write_episodes(tmp_path / "long.jsonl", episodes), tmp_path / "b", model__max_context=64)
    with raises("training.episodes-too-long", "rollouts.max_tokens 8"):
        run_warm_start(mail, tmp_path / "long.jsonl", tmp_path / "b", rollouts__max_tokens=8)
    with raises("training.no-episodes", tmp_path / "other.jsonl", "4 scenarios"):
        run_warm_start(mail, write_episodes(tmp_path / "other.jsonl", episodes[4:]), tmp_path / "c")


def test_training_starts_from_the_weights_of_an_adapter(tmp_path: Path) -> None:
    import torch
    from peft import get_peft_model
    from safetensors.torch import load_file, save_file

    from gumshoe.training.models.lora_model import load_adapter_weights, lora_config

    shape = LoraSettings(rank=2, alpha=4, target_modules=("q_proj",))
    base, other = random_model(64, 1), random_model(64, 1)
    first = get_peft_model(base, lora_config(shape, base))
    for name, parameter in first.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    first.save_pretrained(str(tmp_path))
    second = get_peft_model(other, lora_config(shape, other))
    load_adapter_weights(second, tmp_path)
    ids = torch.arange(10)[None]
    assert torch.equal(first(ids).logits, second(ids).logits)
    for targets in (("q_proj",), "all-linear"):
        check_start(shape.model_copy(update={"start": tmp_path, "target_modules": targets}))  # raises nothing
    for name, value, said in (
        ("rank", 4, ("rank 2", "lora.rank is 4")),
        ("alpha", 8, ("alpha 4", "lora.alpha is 8")),
        ("target_modules", ("k_proj",), ("target_modules ['q_proj']", "lora.target_modules is ['k_proj']")),
        ("target_parameters", "experts", ("target_parameters none", "lora.target_parameters is experts")),
    ):
        with raises("adapters.other-lora-settings", *said):
            check_start(shape.model_copy(update={"start": tmp_path, name: value}))
    config = json.loads((tmp_path / "adapter_config.json").read_bytes())
    for field in (
        {"use_rslora": True},
        {"use_dora": True},
        {"alpha_pattern": {"q_proj": 8}},
        {"rank_pattern": {"q_proj": 4}},
        {"init_lora_weights": "pissa_niter_4"},
    ):
        (tmp_path / "changed").mkdir(exist_ok=True)
        (tmp_path / "changed" / "adapter_config.json").write_text(json.dumps(config | field))
        with raises("adapters.start-not-plain", tmp_path / "changed", *field, *field.values()):
            check_start(shape.model_copy(update={"start": tmp_path / "changed"}))
    keys = load_file(tmp_path / "adapter_model.safetensors")
    for name, weights, said in (
        ("others", {f"other.{key}": value for key, value in keys.items()}, (f"{2 * len(keys)} weights", "missing")),
        ("fewer", dict(list(keys.items())[1:]), ("1 weights", "missing there")),
        ("larger", {key: value.repeat(2, 1) for key, value in keys.items()}, ("(4, 64) there", "(2, 64) here")),
    ):
        (tmp_path / name).mkdir()
        save_file(weights, tmp_path / name / "adapter_model.safetensors")
        with raises("adapters.other-shape", "lora.start", tmp_path / name, *said):
            load_adapter_weights(second, tmp_path / name)
    assert torch.equal(first(ids).logits, second(ids).logits), "the weights did not change"
    (tmp_path / "fewer" / "adapter_model.safetensors").write_text("{}")
    with raises("adapters.weights-unreadable", "lora.start", tmp_path / "fewer"):
        load_adapter_weights(second, tmp_path / "fewer")
    with raises("adapters.not-an-adapter", "lora.start", tmp_path / "none"):
        check_start(shape.model_copy(update={"start": tmp_path / "none"}))


def test_scenarios_of_earlier_adapters_count_as_seen(mail: Path, tmp_path: Path) -> None:
    asked = scenarios(mail)
    first, last = ScenarioSet(asked.scenarios[:1]), ScenarioSet(asked.scenarios[5:])
    Lineage(learned_from=last.to_record(), before=Lineage(learned_from=first.to_record())).write(tmp_path)
    lineage = Lineage.read(tmp_path)
    assert lineage is not None
    lineage.check_unseen(ScenarioSet(asked.scenarios[1:5]), "it")
    for each in (first, last):
        with raises("scenarios.seen-in-training", "1 of these 1 scenarios"):
            lineage.check_unseen(each, "it")


def test_the_pipeline_step_without_episodes_leaves_an_empty_adapter(mail: Path, tmp_path: Path) -> None:
    out, store = tmp_path / "out", str(tmp_path / "store")
    out.mkdir()
    inputs = mail / "index", mail, "tiny", ""
    assert run_sft(*inputs, {}, "", "heuristic", out, store, "") == {}
    assert [each.name for each in out.iterdir()] == ["none"]
    with raises("training.full-in-pipeline", "warm_start.weights is full"):
        run_sft(*inputs, {"warm_start.weights": "full"}, "file:///t", "exact", out, store, "")


@pytest.mark.ci
@pytest.mark.usefixtures("train_in_process")
def test_the_pipeline_step_fetches_the_episodes(mail: Path, chat: ChatFormat, tmp_path: Path) -> None:
    place, out = tmp_path / "far", tmp_path / "out"
    place.mkdir()
    out.mkdir()
    uri = write_episodes(
        place / "t.jsonl", [as_chat(each) for each in record_episodes(mail, chat, correct_answer)]
    ).as_uri()
    settings = {name: value for name, value in SETTINGS.items() if name != "model.name"} | {"warm_start.epochs": 1}
    store = str(tmp_path / "store")
    report = run_sft(mail / "index", mail, "tiny", "", settings, uri, "exact", out, store, "")
    assert (report["right"], report["steps"]) == (4, 1)
    check_start(LoraSettings(rank=4, alpha=8, start=out))
    (kept,) = Store(store).list()
    assert (kept.kind.startswith(WARM_STARTS), kept.version) == (True, "001-000001")


@pytest.mark.ci
@pytest.mark.usefixtures("train_in_process")
def test_a_stopped_pipeline_step_continues_in_another_directory(
    mail: Path, chat: ChatFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file

    from gumshoe.training.sft.sft_trainer import SftRun

    file = write_episodes(tmp_path / "t.jsonl", record_episodes(mail, chat, correct_answer))
    settings = {name: value for name, value in SETTINGS.items() if name != "model.name"}
    settings |= {"warm_start.epochs": 3, "warm_start.batch_size": 4, "optimizer.per_device_train_batch_size": 2}
    store = str(tmp_path / "store")
    passes, on_pass, last = list[int](), SftRun.on_pass, 99

    def pass_and_stop(run: SftRun) -> None:
        on_pass(run)
        passes.append(run._lifecycle.step)
        if run._lifecycle.step == last:
            signal.raise_signal(signal.SIGTERM)

    def start(name: str, code: str = "c1") -> dict[str, float]:
        passes.clear()
        (out := tmp_path / name).mkdir()
        report = run_sft(mail / "index", mail, "tiny", "", settings, file.as_uri(), "exact", out, store, code)
        return {**report, "seconds": 0}

    monkeypatch.setenv(STEP_VARIABLE, "1")
    monkeypatch.setattr(SftRun, "on_pass", pass_and_stop)
    whole, every_pass = start("whole", code="c0"), [*passes]
    last = 1
    with raises("training.stopped", "pipeline") as raised:
        start("stopped")
    assert "--resume" not in raised.value.message
    last = 99
    start("other code", code="c2")
    assert passes == every_pass, "it begins with the first step"
    assert start("continued") == whole
    assert passes == [each for each in every_pass if each > 1]
    one, other = (load_file(tmp_path / each / "adapter_model.safetensors") for each in ("whole", "continued"))
    assert all((one[name] == other[name]).all() for name in one)
    assert start("lost before its upload") == whole
    assert passes == [], "the store has its last checkpoint"


def test_verdicts_before_the_first_step_are_kept_for_another_directory(
    mail: Path, chat: ChatFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_episodes(tmp_path / "t.jsonl", record_episodes(mail, chat, correct_answer))

    def add_and_stop(*arguments: Any) -> list[Trajectory]:
        with arguments[-1].open("a") as verdicts:
            verdicts.write("{}\n")
        counts.append(len(arguments[-1].read_text().splitlines()))
        raise UnavailableError("training.no-verdict", "")

    counts = list[int]()
    settings = {name: value for name, value in SETTINGS.items() if name != "model.name"}
    monkeypatch.setattr("gumshoe.training.sft.warm_start.filter_correct", add_and_stop)
    for name in ("first", "second", "third"):
        (out := tmp_path / name).mkdir()
        inputs = mail / "index", mail, "tiny", "", settings, file.as_uri(), "exact", out, str(tmp_path / "store")
        with raises("training.no-verdict"):
            run_sft(*inputs, "")
    assert counts == [1, 2, 3]


@pytest.mark.nightly
@pytest.mark.usefixtures("train_in_process")
def test_training_starts_from_the_adapter_of_the_command(
    mail: Path, chat: ChatFormat, tmp_path: Path, run: Callable[..., CommandResult]
) -> None:
    import torch
    from safetensors.torch import load_file

    file = write_episodes(tmp_path / "t.jsonl", record_episodes(mail, chat, correct_answer))
    known = ["--index", mail / "index", "--scenarios", mail / "scenarios.jsonl", "--model", "tiny"]
    shape = [word for name, value in SETTINGS.items() if name != "model.name" for word in ("--set", f"{name}={value}")]
    out = tmp_path / "warm"
    far = ["--set", "warm_start.epochs=2", "--set", "warm_start.learning_rate=0.1"]  # from the base model
    done = run("warm-start", file, *known, *shape, "--out", out, *far, "--json")
    assert done.status == 0, done.err
    report = json.loads(done.out)
    assert (report["episodes"], report["right"], report["steps"]) == (4, 4, 2)
    again = run("warm-start", file, *known, *shape, "--out", out)
    assert (again.status, again.code) == (2, "training.directory-not-empty")
    still = ["optimizer.learning_rate=0", "optimizer.max_steps=1", "rollouts.num_generations=2", "optimizer.beta=0.1"]
    still += ["optimizer.per_device_train_batch_size=2", "optimizer.gradient_accumulation_steps=1"]
    still += ["rollouts.max_tokens=16", "rollouts.min_group_std=0", "evaluation.baseline=false", "output.report_to=[]"]
    words = [word for each in still for word in ("--set", each)]
    train = ["train", *known, *shape, *words, "--engine", "transformers", "--out", tmp_path / "run"]
    trained = run(*train, "--set", f"lora.start={out}")
    assert trained.status == 0, trained.err
    before, after = (load_file(each / "adapter_model.safetensors") for each in (out, tmp_path / "run" / "final"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    lineage = Lineage.read(tmp_path / "run" / "final")
    assert lineage is not None
    assert lineage.before == Lineage.read(out)
    longer = run(*train, "--set", "optimizer.max_steps=2", "--resume")
    assert longer.status == 0, longer.err
    assert Lineage.read(tmp_path / "run" / "final") == lineage, "a resumed run keeps its lineage"
    records = [each for each in read_records(tmp_path / "run" / "metrics.jsonl") if isinstance(each, StepRecord)]
    assert [(each.kl, each.skipped) for each in records] == [(0, False)] * 2, "the reference is the start"
    assert not (tmp_path / "run" / "checkpoint-2" / "ref").exists()
    other = ["--set", "lora.rank=8", "--set", f"lora.start={out}"]
    unlike = run("train", *known, *shape, *other, "--out", tmp_path / "x")
    assert (unlike.status, unlike.code) == (2, "adapters.other-lora-settings")
    assert "lora.rank is 8" in unlike.err


@pytest.mark.nightly
@pytest.mark.usefixtures("train_in_process")
def test_a_model_with_all_weights_trained_is_a_base_model_of_its_own(
    mail: Path, chat: ChatFormat, tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    file = write_episodes(tmp_path / "t.jsonl", record_episodes(mail, chat, correct_answer))
    out, asked = tmp_path / "model", scenarios(mail)
    run_warm_start(mail, file, out, warm_start__weights="full", warm_start__epochs=1)
    assert {each.name for each in TINY.iterdir()} - {each.name for each in out.iterdir()} == {"made.json"}
    config, before = (json.loads((each / "config.json").read_bytes()) for each in (out, TINY))
    assert config == {**before, "dtype": "float32"}
    assert load_file(out / "model.safetensors").keys() == load_file(TINY / "model.safetensors").keys()
    assert ChatFormat(load_tokenizer(out)).encode_turn("a") == chat.encode_turn("a")
    assert is_tiny(out)
    origin = json.loads((out / "origin.json").read_bytes())
    assert (origin["origin"], origin["base"]["name"]) == ("tiny", "tiny")
    lineage = read_prior_lineage(settings_of(model__name=str(out)))
    assert lineage is not None
    with raises("scenarios.seen-in-training", "4 of these 6"):
        lineage.check_unseen(asked, "it")
    adapter = tmp_path / "adapter"
    run_warm_start(mail, file, adapter, model__name=str(out), warm_start__epochs=1)
    known = Lineage.read(adapter)
    assert known is not None
    assert known.before == lineage
    (out / "origin.json").write_text("{}")
    with raises("inference.merge-record-damaged", out / "origin.json"):
        is_tiny(out)


def test_the_setting_lora_start_is_a_path() -> None:
    assert resolve(None, {"lora.start": "runs/warm"}, {}).settings.lora.start == Path("runs/warm")
    assert TrainSettings().lora.start is None
