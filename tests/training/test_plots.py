"""The plots of a run: which there are, and the page in a real browser."""

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gumshoe.training.charts import chart_data, make_charts
from gumshoe.training.plots import write_plots
from gumshoe.training.records import EvaluationRecord, StepRecord
from gumshoe.training.run_spec import TIMELINE
from gumshoe.training.timeline import Timeline
from tests.browser_page import OpenPage, find_violations
from tests.tiers import nightly_except
from tests.training.test_phase_clock import times_of
from tests.training.test_records import evaluation, step

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Records = list[StepRecord | EvaluationRecord]
STEPS = [step(number, reward=number / 10, kl=None) for number in range(1, 8)]
RUN: Records = [evaluation(0), *STEPS, evaluation(7)]
RUNS: dict[str, Records] = {
    "several steps": RUN,
    "one step": [step(1)],
    "evaluation": [evaluation(0)],
    "empty": [],
}


def embedded(page: Path) -> Any:
    """Return the data that is embedded in a page."""
    found = re.search(r'id="data-charts">(.*?)</script>', page.read_text(encoding="utf-8"))
    assert found is not None
    return json.loads(found[1])


def test_metrics_without_data_have_no_chart() -> None:
    steps = [step(number, kl=None, entropy=math.nan, rewards={}, reward_quantiles=()) for number in (1, 2)]
    names = {each.name: each for each in make_charts(steps, [])}
    assert {"accuracy", "rewards", "loss", "times"} <= set(names)
    assert not {"kl", "entropy", "distribution"} & set(names)
    assert [each.label for each in names["accuracy"].lines] == ["training episodes, sampled"]
    assert [each.label for each in names["rewards"].lines] == ["combined"]
    assert make_charts([], []) == []


def test_split_episodes_are_drawn_by_reason_if_there_are_any() -> None:
    split = step(2, split_episodes=0.5, split_reasons={"history edited": 0.5})
    (chart,) = [each for each in make_charts([step(1), split], []) if each.name == "split_episodes"]
    assert {each.label: each.values for each in chart.lines} == {
        "all": {1: 0.0, 2: 0.5},
        "history edited": {1: 0.0, 2: 0.5},
    }
    assert "split_episodes" not in {each.name for each in make_charts([step(1)], [])}


def test_values_are_aligned_to_all_steps_of_the_run() -> None:
    broken = step(2, loss=math.inf, reward_quantiles=(math.nan, 0.0, 0.5, 1.0, 1.5))
    data = chart_data(make_charts([step(1), broken], [evaluation(0, accuracy=0.25), evaluation(2)]))
    assert data["steps"] == [0, 1, 2]
    charts = {each["title"]: each for each in data["charts"]}
    assert charts["Accuracy"]["lines"][1]["values"] == [0.25, None, evaluation(2).accuracy]
    assert charts["Loss"]["lines"][0]["values"] == [None, 0.521, None]
    assert charts["Reward distribution"]["bands"][0] | {"label": ""} == {
        "label": "",
        "low": [None, -1.0, None],
        "high": [None, 1.5, None],
    }


@pytest.mark.parametrize("name", ["one step", "evaluation", "empty"])
def test_a_picture_is_written_for_each_chart(name: str, tmp_path: Path) -> None:
    page = write_plots(RUNS[name], tmp_path, "Run <r1>")
    assert page == tmp_path / "plots.html"
    assert len(list((tmp_path / "plots").glob("*.png"))) == len(embedded(page)["charts"])
    text = page.read_text(encoding="utf-8")
    assert "<h1>Run &lt;r1&gt;</h1>" in text
    assert ('id="no-steps"' in text) == (name in {"evaluation", "empty"})
    assert "Copyright (c) 2022 Leon Sorokin" in text, "the library's license"


@pytest.mark.ci
def test_charts_can_be_zoomed_read_and_switched_off(browser: "Browser", tmp_path: Path) -> None:
    found = OpenPage.open(browser, write_plots(RUN, tmp_path, "Run r1").as_uri())
    figure = found.page.locator("figure").filter(has_text="Reward by function")
    assert found.page.locator("canvas").count() == found.page.locator("figure").count() > 5
    combined = figure.locator(".legend button").first
    assert combined.inner_text().split() == ["combined", "0.7"], "the last value"
    ticks = found.page.evaluate("plots.flatMap(plot => plot.axes[0]._splits)")
    assert set(ticks) <= set(range(8))

    plot = figure.locator(".u-over")
    box = plot.bounding_box()
    assert box is not None
    found.page.mouse.move(box["x"] + box["width"] * 3 / 7, box["y"] + 50)
    found.wait_for("document.getElementById('at').textContent === 'step 3'")
    assert combined.inner_text().split() == ["combined", "0.3"]
    found.page.mouse.down()
    found.page.mouse.move(box["x"] + box["width"] * 0.99, box["y"] + 90, steps=3)
    found.page.mouse.up()
    found.wait_for("plots.every(plot => Math.round(plot.scales.x.min) === 3)")
    assert (found.page.input_value("#first"), found.page.input_value("#last")) == ("3", "7")
    found.page.fill("#last", "5")
    found.page.keyboard.press("Enter")
    found.wait_for("plots.every(plot => Math.round(plot.scales.x.max) === 5)")
    found.page.click("button[type=reset]")
    found.wait_for("plots.every(plot => plot.scales.x.min < 0.1)")

    combined.click()
    assert combined.get_attribute("aria-pressed") == "false"
    assert not found.page.evaluate("plots[1].series[1].show")
    figure.locator("summary").click()
    assert figure.locator("tbody tr").last.inner_text().split() == ["7", "0.7", "0.456"]
    found.close()


@pytest.mark.nightly
def test_the_newest_steps_are_shown_as_a_timeline(browser: "Browser", tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / TIMELINE)
    for number in (1, 2):
        timeline.add(times_of(number))
    page = write_plots(RUN, tmp_path, "Run r1")
    assert (tmp_path / "plots" / "timeline.png").is_file()
    for width in (1280, 390):
        found = OpenPage.open(browser, page.as_uri(), width)
        found.wait_for("document.querySelector('.timeline img').naturalWidth > 500")
        assert found.fits()
        found.close()


@pytest.mark.ci
@pytest.mark.parametrize("name", nightly_except({"several steps"}, ["several steps", "evaluation"]))
def test_axe_finds_nothing_in_plots(name: str, browser: "Browser", tmp_path: Path) -> None:
    assert find_violations(browser, write_plots(RUNS[name], tmp_path, "Run r1").as_uri()) == []
