"""What one node of a training on several does: it fetches what it needs from the store, and trains; the first node puts
the result there.

Started as `python -m gumshoe.training.node_main REQUEST`, with the request in JSON. The torch runtime of Kubeflow
Trainer sets PET_* variables that say which node this is. Each thing in the store has a name that comes from the request
alone, so that a restarted node finds it.
"""

import hashlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gumshoe.artifacts.manifest import artifact_files, content_digest, describe
from gumshoe.artifacts.store import Store
from gumshoe.errors import GumshoeError
from gumshoe.inference.vllm_server import ServerError, check_server, server_address
from gumshoe.terminal import err, printable
from gumshoe.training.launch.distributed_env import DistributedEnv
from gumshoe.training.launch.supervisor import exit_on_sigterm
from gumshoe.training.run_spec import SHAPE
from gumshoe.training.settings import resolve
from gumshoe.training.training_step import TrainRequest, TrainResult, result_of, run_training

RESULTS = "results"
INDEX, SCENARIOS, START = "inputs/index", "inputs/scenarios", "inputs/start"
_SERVERS = 45 * 60.0  # seconds
_LOOK = 5.0  # seconds
_ADAPTER, _PAGE, _TOLD = "adapter", "plots.html", "result.json"


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """A training as each node is told of it. What it needs lies in the store of the run's checkpoints, by reference."""

    index: str
    scenarios: str
    base_model: str
    config: str
    settings: dict[str, Any]
    checkpoints: str
    start: str = ""

    @classmethod
    def published(cls, asked: TrainRequest) -> "NodeRequest":
        """The request of a step, whose inputs are put into the store; those that are there already are not sent again.

        Raises:
            StorageError, UnavailableError: the store failed.
        """
        store, start = Store(asked.checkpoints), asked.start
        return cls(
            index=_published(store, INDEX, asked.index),
            scenarios=_published(store, SCENARIOS, asked.scenarios),
            base_model=asked.base_model,
            config=asked.config,
            settings=dict(asked.settings),
            checkpoints=asked.checkpoints,
            start=_published(store, START, start) if start is not None and (start / SHAPE).exists() else "",
        )

    @property
    def json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def result(self) -> str:
        """What its result is called in the store."""
        return f"{RESULTS}/{hashlib.sha256(self.json.encode()).hexdigest()[:16]}"


def fetch_result(request: NodeRequest, directory: Path) -> TrainResult | None:
    """The result of a training that is at its end, in a directory that it is fetched to; None where it is not.

    Raises:
        StorageError, UnavailableError, CorruptArtifactError: it cannot be had.
    """
    store = Store(request.checkpoints)
    if store.find(request.result) is None:
        return None
    store.fetch(request.result, directory)
    told = json.loads((directory / _TOLD).read_bytes())
    return TrainResult(directory, directory / _ADAPTER, directory / _PAGE, told["facts"], told["numbers"])


def run_node(request: NodeRequest) -> None:
    """Train as one node of several, to the end.

    Raises:
        UsageError: it cannot be carried out as it was put.
        UnavailableError: it is to be run again, and goes on then.
    """
    store, is_first = Store(request.checkpoints), not DistributedEnv.here().rank
    if store.find(request.result) is not None:
        err.print("This training is at its end; there is nothing to go on with.")
        return
    with tempfile.TemporaryDirectory(prefix="gumshoe-node-") as made:
        scratch = Path(made)
        with exit_on_sigterm():
            index, scenarios = (
                store.fetch(reference, scratch / Path(reference).parent.name).directory
                for reference in (request.index, request.scenarios)
            )
            start = store.fetch(request.start, scratch / "start").directory if request.start else None
            _wait_for_servers(resolve(request.config, request.settings).settings.rollouts.servers)
        own = index, scenarios, request.base_model, request.config, request.settings, request.checkpoints, start
        directory = run_training(TrainRequest(*own))
        if is_first:
            found = result_of(directory)
            shutil.copytree(found.adapter, scratch / RESULTS / _ADAPTER)
            shutil.copyfile(found.plots, scratch / RESULTS / _PAGE)
            told = {"facts": found.facts, "numbers": found.numbers}
            (scratch / RESULTS / _TOLD).write_text(json.dumps(told), encoding="utf-8")
            store.publish(scratch / RESULTS, RESULTS, request.result.rpartition("/")[2], latest=False)
        shutil.rmtree(directory)


def _published(store: Store, kind: str, directory: Path) -> str:
    """The reference of a directory's files in the store, by their content."""
    version = content_digest(describe(artifact_files(directory)))[:16]
    return store.publish(directory, kind, version, latest=False).manifest.reference


def _wait_for_servers(urls: Sequence[str]) -> None:
    """Servers that are started with this node have a model to load first.

    Raises:
        UnavailableError: they do not answer in time.
    """
    until, waits = time.monotonic() + _SERVERS, ""
    for url in urls:
        while True:
            try:
                check_server(server_address(url), context=0)
                break
            except ServerError as error:
                if time.monotonic() > until:
                    raise
                if waits != url:
                    waits = url
                    err.print(f"Waiting for a server that samples ({printable(error)})", soft_wrap=True)
            time.sleep(_LOOK)


def main() -> None:
    """Take part as the command line says, and exit with the status of how that went."""
    try:
        run_node(NodeRequest(**json.loads(sys.argv[1])))
    except GumshoeError as error:
        err.print(f"[bold red]error:[/] {printable(error.message_with_code)}", soft_wrap=True)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
