"""Directories and stores with the files that an erasure changes."""

import json
from pathlib import Path

import pytest

from gumshoe.artifacts.private_data import mark_private
from gumshoe.artifacts.response_cache import Cache
from gumshoe.documents.scraping.page_cache import CachedPage, PageCache
from gumshoe.scenarios.scenario import Scenario
from tests.erasure.people import ABOUT_ANN, ABOUT_BOB, ANN, BOB, episode, lineage_of, write_lines
from tests.mail.mailbox import make_index, record


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache of judges' verdicts and one of web pages that quote Ann."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("GUMSHOE_CACHE", str(directory))
    monkeypatch.chdir(tmp_path)  # for receipts
    cache = Cache(directory / "judge.sqlite")
    cache.put({"key": b"zircon, says ann@example.com"})
    cache.close()
    page = CachedPage(etag="1", modified="", content_type="text/html", body=b"zircon, says ann@example.com")
    PageCache(directory / "pages", 1000).put("https://example.com/ann", page)
    return directory


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a directory with an index, questions, an evaluation, an adapter of Ann's questions and one of Bob's."""
    place = tmp_path / "place"
    place.mkdir()
    records = [record(1, body="zircon in Leeds", to=[ANN]), record(2, body="quartz in York", to=[BOB])]
    records[0]["from"] = records[0]["sender"] = ANN
    records[1]["from"] = records[1]["sender"] = BOB
    make_index(tmp_path / "built", records).directory.rename(place / "mail")
    write_lines(place / "questions.jsonl", ABOUT_ANN, ABOUT_BOB)
    evaluation = place / "evaluation"
    episodes = [episode("a", ANN, "zircon in Leeds"), episode("b", BOB, "quartz in York")]
    write_lines(evaluation / "trajectories" / "base.jsonl", *episodes)
    predictions = [
        {"scenario": each["id"], "question": each["question"], "answer": each["answer"]}
        for each in (ABOUT_ANN, ABOUT_BOB)
    ]
    write_lines(evaluation / "predictions.jsonl", *predictions)
    (evaluation / "predictions.csv").write_text(
        "scenario,question,answer\r\n"
        + "".join(f'{each["id"]},{each["question"]},"{each["answer"]}"\r\n' for each in (ABOUT_ANN, ABOUT_BOB))
    )
    (evaluation / "metrics.json").write_text(json.dumps({"accuracy": 0.5, "worst": [predictions[0], predictions[1]]}))
    (evaluation / "report.html").write_text("<p>zircon in Leeds</p>")
    mark_private(evaluation, [ANN, BOB])
    for name, about in (("of-ann", ABOUT_ANN), ("of-bob", ABOUT_BOB)):
        adapter = place / "run" / name
        adapter.mkdir(parents=True)
        (adapter / "adapter_config.json").write_text("{}")
        lineage_of(Scenario.model_validate(about)).write(adapter)
    return place
