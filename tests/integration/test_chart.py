"""The rendered chart, started as a cluster starts it: vLLM, the init container, and the agent server."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from gumshoe.artifacts.store import Store
from gumshoe.inference.policy_names import TINY
from gumshoe.inference.vllm_server import is_vllm_installed
from gumshoe.scenarios.sources import load_scenarios
from gumshoe.serving.key_file import add_key
from tests.charts.test_agent_chart import CHART, of_kind, render, settings_of
from tests.conftest import find_free_port, skip_missing
from tests.integration.inputs import make_mail, write_adapter
from tests.waiting import wait_until

pytestmark = [pytest.mark.ci, pytest.mark.timeout(600)]
CPU = ["--dtype=float32", "--block-size=128", "--enforce-eager"]


def replace_paths(words: list[str], places: dict[str, str]) -> list[str]:
    """Return the arguments of a container, with its directories replaced by local ones."""
    for there, here in places.items():
        words = [each.replace(there, here) for each in words]
    return words


@contextmanager
def running(words: list[str], log: Path, url: str, environment: dict[str, str]) -> Iterator[None]:
    """Run a process while the block runs, which starts once the process answers at `url`."""
    with log.open("wb") as file:
        process = subprocess.Popen(words, stdout=file, stderr=file, env={**os.environ, **environment})

    def answers() -> bool:
        with suppress(OSError), urllib.request.urlopen(url, timeout=60):  # URLError is an OSError
            return True
        return False

    try:
        wait_until(answers, process, log.read_text)
        yield
    finally:
        process.terminate()
        process.wait()


def environment_of(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


def test_the_rendered_chart_starts_and_passes_helm_test(s3_bucket: str, tmp_path: Path) -> None:
    """The test needs its own vLLM server, started with the chart's arguments."""
    if not is_vllm_installed():
        skip_missing("vLLM (the CPU build comes with `make install` on Linux)")
    make_mail(tmp_path, 9, 4, 300, "easy")
    asked = load_scenarios(str(tmp_path / "scenarios.jsonl")).scenarios[0]
    root = f"s3://{s3_bucket}/project"
    adapters = {name: write_adapter(tmp_path / name, seed) for seed, name in enumerate(("r7f3-2", "r8a1-1"))}
    Store(root).publish(tmp_path / "index", "mail-indexes", "one")
    for name, directory in adapters.items():
        Store(root).publish(directory, "adapters", name)
    (tmp_path / "keys").mkdir()
    key = add_key(tmp_path / "keys" / "keys.yaml", "test", ["*@*"])
    objects = render(
        {
            "adapter": {"name": "r7f3-2", "uri": f"{root}/adapters/r7f3-2", "maxRank": 8},
            "canary": {"name": "r8a1-1", "uri": f"{root}/adapters/r8a1-1", "percent": 50},
            "serving": {"extraArgs": CPU},
            "agent": {
                "store": root,
                "image": {"repository": "registry.example.com/gumshoe/agent"},
                "access": {"existingSecret": "gumshoe-keys"},
            },
            "test": {"inbox": str(asked.inbox_address), "question": asked.question},
        }
    )

    runtime = of_kind(objects, "ServingRuntime")["spec"]["containers"][0]
    predictor = of_kind(objects, "InferenceService")["spec"]["predictor"]
    port = find_free_port()
    mounts = {each["mountPath"]: each["uri"] for each in predictor["storageUris"]}
    assert mounts["/mnt/lora/r8a1-1"] == f"{root}/adapters/r8a1-1"
    places = {f"/mnt/lora/{name}": str(directory) for name, directory in adapters.items()}
    places |= {"/mnt/models": str(TINY), "--port=8080": f"--port={port}"}
    words = [*runtime["command"], *replace_paths([*runtime["args"], *predictor["model"]["args"]], places)]
    words[0] = sys.executable
    words = [each for each in words if not each.startswith("--gpu-memory")]  # the CPU build does not have it
    vllm = f"http://127.0.0.1:{port}"
    with running(words, tmp_path / "vllm.log", f"{vllm}/health", {"VLLM_CPU_KVCACHE_SPACE": "1"}):
        pod = of_kind(objects, "Deployment")["spec"]["template"]["spec"]
        fetch, agent = pod["initContainers"][0], pod["containers"][0]
        paths = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        data = {"/data": str(tmp_path / "data")}
        fetched = subprocess.run(
            [*fetch["command"], *replace_paths(fetch["args"], data)],
            env={**os.environ, **environment_of(fetch), "PATH": paths},
            capture_output=True,
            text=True,
            check=False,
        )
        assert fetched.returncode == 0, fetched.stderr

        settings = settings_of(objects)
        address = find_free_port()
        service = "http://mail-gumshoe-agent-model.agents.svc:8080"
        text = yaml.safe_dump(settings | {"port": address, "host": "127.0.0.1"})
        here = {**data, "/etc/gumshoe-keys": str(tmp_path / "keys"), service: vllm}
        (tmp_path / "settings.yaml").write_text(replace_paths([text], here)[0])
        words = replace_paths([*agent["command"]], {"/etc/gumshoe/settings.yaml": str(tmp_path / "settings.yaml")})
        url = f"http://127.0.0.1:{address}"
        given = {**environment_of(agent), "PATH": paths}
        with running(
            [f"{Path(sys.executable).parent}/{words[0]}", *words[1:]], tmp_path / "log", f"{url}/readyz", given
        ):
            test = of_kind(objects, "Pod")["spec"]["containers"][0]
            done = subprocess.run(
                [sys.executable, "-c", *test["args"]],
                env={**os.environ, **environment_of(test), "MODELS": vllm, "AGENT": url, "KEY": key},
                capture_output=True,
                text=True,
                check=False,
            )
    assert done.returncode == 0, done.stderr
    assert f"{vllm} serves r7f3-2, r8a1-1" in done.stdout
    assert "ask, read_email, search_inbox" in done.stdout
    assert json.dumps(asked.question)[1:-1] in done.stdout.replace("\\'", "'")
    assert (CHART / "files" / "test.py").read_text().strip() == test["args"][0].strip()
