"""Plant credentials wherever a user can put some, run the commands, and look for them in everything that is written."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gumshoe.artifacts.store import Store
from tests.conftest import CommandResult, find_free_port
from tests.errors import raises
from tests.evaluation.conftest import Place, wrong_about
from tests.evaluation.conftest import place as place
from tests.inference.fake_vllm import FakeVLLM, status
from tests.otlp_collector import run_collector
from tests.serving.agent_server import ServerFiles, make_files, question_body, start_server
from tests.waiting import wait_until

Run = Callable[..., CommandResult]
MARK = "PLANTED"
"""Every planted credential contains it."""
LOGIN = f"ann:{MARK}-password"
VARIABLES: dict[str, Any] = {
    "AWS_SECRET_ACCESS_KEY": f"{MARK}/aws+secret",
    "AWS_SESSION_TOKEN": f"{MARK}-session",
    "HF_TOKEN": f"hf_{MARK}AAAAAAAAAAAAAAAAAA",
    "OPENAI_API_KEY": f"sk-{MARK}AAAAAAAAAAAAAAAA",
    "WANDB_API_KEY": f"{MARK}-wandb",
    "GUMSHOE_WEBHOOK": f"http://127.0.0.1:9/hooks/{MARK}",
    "GUMSHOE_IMAP_PASSWORD": f"{MARK}-imap",
    "MLFLOW_TRACKING_URI": f"http://{LOGIN}@127.0.0.1:9",
    "KFP_TOKEN": f"{MARK}-kfp-token",
}


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


def with_login(address: str) -> str:
    return address.replace("://", f"://{LOGIN}@")


def find_planted(*written: Path | str | bytes) -> list[str]:
    """Return the lines with a planted credential, of texts and of all files in directories."""
    contents: list[bytes] = []
    for each in written:
        if isinstance(each, Path):
            contents += [file.read_bytes() for file in each.rglob("*") if file.is_file()]
        else:
            contents.append(each.encode() if isinstance(each, str) else each)
    lines = [line for content in contents for line in content.splitlines() if MARK.encode() in line]
    return [line.decode(errors="replace")[:300] for line in lines]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ServerFiles:
    return make_files(tmp_path_factory.mktemp("planted"))


@pytest.mark.ci
def test_an_agent_server_writes_none(files: ServerFiles, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    requests: list[str] = []
    with (
        FakeVLLM(models=("base", "adapter")) as model,
        run_collector() as (collector, received),
        start_server(
            files,
            f"vllm:{with_login(model.address)}#adapter",
            log,
            "--open",
            **VARIABLES,
            OTEL_EXPORTER_OTLP_ENDPOINT=with_login(collector),
            OTEL_EXPORTER_OTLP_HEADERS=f"authorization={MARK}-otlp",
        ) as server,
    ):
        headers = {"Authorization": f"Bearer {MARK}", "X-Api-Key": MARK, "Cookie": f"session={MARK}"}

        def ask(**changes: Any) -> None:
            answer = server.client.post(f"/invoke?key={MARK}", json=question_body(**changes), headers=headers)
            requests.append(f"{answer.headers} {answer.text}")

        ask()
        for fault in (status(500), status(401), status(400, {"message": f"no, {LOGIN}"})):
            model.inject(fault)
            ask()
            model.heal()
        requests += [server.client.get(path).text for path in ("/metrics", "/readyz", f"/nothing?token={MARK}")]
        model.models = ("base",)
        wait_until(lambda: server.client.get("/readyz").status_code == 503, server.process, log.read_text)
        requests.append(server.client.get("/readyz").text)
    assert "127.0.0.1" in requests[-1], "the address itself is named"
    assert received, "spans were exported"
    assert find_planted(log.read_text(), *requests, *received) == []


def test_a_server_that_never_gets_ready_writes_none(files: ServerFiles, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    address = f"http://127.0.0.1:{find_free_port()}"
    words = [files, f"vllm:{with_login(address)}#adapter", log, "--open"]
    with start_server(*words, ready=False, **VARIABLES) as server:  # type: ignore[arg-type]
        wait_until(lambda: address in server.client.get("/readyz").text.replace("***@", ""), server.process)
        answers = [server.client.get("/readyz").text, server.ask().text]
    assert find_planted(log.read_text(), *answers) == []


@pytest.mark.usefixtures("planted")
def test_an_evaluation_writes_none(place: Place, run: Run, tmp_path: Path) -> None:
    with FakeVLLM(chat=wrong_about(2, 3)) as server:
        address = with_login(server.address)
        words = ["--index", place.index, "--scenarios", place.scenarios, "--tokenizer", place.tokenizer]
        policies = ["--policy", f"plain=vllm:{address}#base", "--policy", f"chat=chat:base@{address}/v1"]
        ran = run("evaluate", *words, *policies, "--out", tmp_path / "out")
        assert ran.status == 0, ran.err
        assert (tmp_path / "out" / "report.html").exists()
        assert (tmp_path / "out" / "metrics.json").exists()
    assert find_planted(tmp_path / "out", ran.out, ran.err) == []


CLOSED = f"http://{LOGIN}@127.0.0.1:9"
SLASH = f"http://ann:{MARK}/with/slashes@127.0.0.1:9"  # libraries quote parts of such a URL
COMMANDS: list[list[str]] = [
    ["artifacts", "list", "--store", f"s3://{LOGIN}@bucket/prefix"],
    ["artifacts", "list", "--store", f"ftp://{LOGIN}@host/prefix"],
    ["mail", "index", f"imap://{LOGIN}@127.0.0.1:9/INBOX", "--out", "OUT"],
    ["mail", "index", f"maildir:s3://{LOGIN}@bucket/mail", "--out", "OUT"],
    ["documents", "index", f"jsonl:https://{LOGIN}@host/file.jsonl", "--out", "OUT"],
    ["documents", "scrape", f"{CLOSED}/page", "--out", "OUT"],
    ["documents", "index", "jsonl:FILE", "--out", "OUT", "--embedding", f"openai:model@{CLOSED}/v1"],
    ["ask", "a question", "--index", "INDEX", "--policy", f"vllm:{CLOSED}#base", "--tokenizer", "OUT"],
    ["rollout", "--index", "INDEX", "--scenarios", "FILE", "--policy", f"vlm:{CLOSED}", "--out", "OUT"],
    ["evaluate", "--index", "INDEX", "--scenarios", "FILE", "--policy", f"chat:m@{CLOSED}/v1", "--out", "OUT"],
    [
        "evaluate",
        "--index",
        "I",
        "--scenarios",
        "F",
        "--policy",
        "keywords",
        "--judge",
        f"openai:m@{CLOSED}",
        "--out",
        "OUT",
    ],
    ["evaluate", "--index", "I", "--scenarios", "F", "--policy", f"chat:m@{SLASH}", "--out", "OUT"],
    ["pipeline", "submit", "train-agent", "--host", SLASH, "-p", "store=s3://bucket/p"],
    ["adapter-loader", "file:///nowhere", "--server", SLASH, "--directory", "/proc/nothing"],
    ["doctor", "--kfp", SLASH, "--timeout", "1"],
    ["judge", "run", f"openai:m@{CLOSED}"],
    ["train", "--index", "INDEX", "--scenarios", "FILE", "--set", f"rollouts.servers=[{CLOSED}]", "--out", "OUT"],
    ["train", "--index", "INDEX", "--scenarios", "FILE", "--set", f"rewards.judge=openai:m@{CLOSED}", "--out", "OUT"],
    ["pipeline", "run", "train-agent", "-p", f"judge=openai:m@{CLOSED}/v1"],
    ["pipeline", "submit", "train-agent", "--host", CLOSED, "-p", "store=s3://bucket/p"],
    ["pipeline", "submit", "train-agent", "--host", "http://127.0.0.1:9", "-p", f"store=s3://{LOGIN}@bucket/p"],
    ["doctor", "--kfp", CLOSED, "--store", f"s3://{LOGIN}@bucket/p", "--timeout", "1"],
    ["serve", "--index", "INDEX", "--policy", f"vllm:{CLOSED}#a", "--set", f"access.jwks_url={CLOSED}/jwks"],
    ["--proxy", f"socks5://{LOGIN}@proxy", "doctor"],
    ["adapter-loader", f"s3://{LOGIN}@bucket/p", "--server", CLOSED, "--directory", "/proc/nothing"],
    ["model-fetch", f"hf://{LOGIN}@owner/name=/proc/nothing"],
    ["no-such-command", CLOSED],
]


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:2])[:30])
def test_a_command_that_fails_writes_none(
    words: list[str], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    ran = run(*[str(tmp_path / "out") if each == "OUT" else each for each in words])
    assert ran.status != 0
    assert ran.err + ran.out, "it says why"
    assert find_planted(tmp_path, ran.out, ran.err) == []


def test_settings_and_arguments_that_are_stored_may_have_none() -> None:
    from gumshoe.training.settings_sources import resolve
    from gumshoe_pipelines.run_arguments import check_arguments

    for name, value in {
        "rollouts.servers": [CLOSED],
        "evaluation.judge": f"openai:m@{CLOSED}/v1",
        "rollouts.handover": f"s3://{LOGIN}@bucket/p",
        "output.checkpoints": f"s3://{LOGIN}@bucket/p",
    }.items():
        with raises("training.credentials-in-settings", name) as raised:
            resolve("tiny", {name: value})
        assert MARK not in str(raised.value)
    with raises("pipelines.credentials-in-arguments", "deployment.values.url") as raised:
        check_arguments({"deployment": {"values": {"url": CLOSED}}}, is_local=True)
    assert MARK not in str(raised.value)
    with raises("pipelines.several-faults", "judge: ", "settings.rollouts.servers.0: ") as raised:
        check_arguments({"judge": f"openai:m@{CLOSED}", "settings": {"rollouts.servers": [CLOSED]}}, is_local=True)
    assert MARK not in str(raised.value)


def test_manifests_have_none(tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    store = Store((tmp_path / "store").as_uri())
    settings = {"judge": f"openai:m@{CLOSED}", "nested": [{"api_key": MARK, "rank": 8}]}
    store.publish(tmp_path / "adapter", "adapters", "v1", settings=settings)
    assert find_planted(tmp_path / "store") == []
    kept = store.manifest("adapters/v1").settings
    assert kept == {"judge": "openai:m@http://***@127.0.0.1:9", "nested": [{"api_key": "***", "rank": 8}]}
    assert json.loads(json.dumps(kept)) == kept
