"""The report in a real browser: content, filters, and safety against injected text."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gumshoe.evaluation.metrics import format_value
from gumshoe.evaluation.results import EvaluationResult
from tests.evaluation.conftest import Place
from tests.evaluation.pages import SYSTEM, invent_evaluation, write_page
from tests.inference.fake_vllm import encoded, logprobs_of
from tests.scenarios.questions import question

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HOSTILE = (
    "<script>window.hacked = 1</script></script><img src=x onerror='window.hacked = 2'><!-- <style>*{display:none}"
    "</style><a href='javascript:window.hacked=3'>x</a><iframe src='https://example.com'></iframe>{{ 7 * 7 }}\u2028]]>"
    '" onmouseover="window.hacked = 4" \\u003cscript> &lt;b&gt;'
)


@dataclass
class OpenPage:
    """An open page, with the errors and requests of the browser."""

    page: "Page"
    faults: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def items(self) -> list[str]:
        return self.page.locator("#list li b").all_text_contents()

    def texts(self) -> str:
        """Return all text of the list, including items that are not in view, which have no inner text."""
        return "\n".join(self.page.locator("#list li").all_text_contents())

    def show(self, value: str) -> None:
        self.page.select_option("#show", value)


def asked_about(number: int) -> str:
    """Return the question about a message."""
    return str(question(number)["question"])


def open_page(browser: "Browser", address: str) -> OpenPage:
    found = OpenPage(browser.new_page(viewport={"width": 1400, "height": 1000}))
    found.page.on("console", lambda message: found.faults.append(message.text))
    found.page.on("pageerror", lambda error: found.faults.append(str(error)))
    found.page.on("dialog", lambda dialog: found.faults.append(dialog.message))
    found.page.on("request", lambda request: found.requests.append(request.url))
    found.page.goto(address)
    return found


@pytest.fixture(scope="module")
def address(place: Place, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write a report of 1,000 trajectories: 500 questions, two policies."""
    evaluated, settings = invent_evaluation(place, 500, [("old", 2), ("new", 5)])
    directory = tmp_path_factory.mktemp("page")
    evaluated.result.write(directory)
    return write_page(directory / "report.html", evaluated, settings)


@pytest.fixture
def report(browser: "Browser", address: str) -> Iterator[OpenPage]:
    found = open_page(browser, address)
    yield found
    assert found.faults == []
    assert {each.partition("#")[0] for each in found.requests} == {address}
    found.page.close()


@pytest.mark.ci
def test_a_thousand_trajectories_are_listed_and_counted(report: OpenPage) -> None:
    assert report.page.inner_text("#count") == "1,000 of 1,000"
    assert len(report.items()) == 1000
    assert re.search(r"new .*80\.0%.* 500 .*old .*50\.0%", report.page.title())


@pytest.mark.ci
def test_every_filter_shows_matching_episodes(report: OpenPage) -> None:
    counts = {"wrong": 350, "correct": 650, "gained": 200, "lost": 50, "changed": 250, "source": 1}
    counts |= {"unusable": 1, "gave-up": 2}
    for value, count in counts.items():
        report.show(value)
        assert report.page.inner_text("#count") == f"{count:,} of 1,000", value
    report.page.click("button[type=reset]")
    report.page.wait_for_function("document.querySelectorAll('#list li').length === 1000")
    report.page.select_option("#policy", "new")
    assert report.page.inner_text("#count") == "500 of 1,000"
    report.page.select_option("#kind", "kind 1")
    assert report.page.inner_text("#count") == "167 of 1,000"
    report.page.fill("#most", "0")
    rewards = [float(each) for each in re.findall(r"reward (-?\d+\.\d\d)", report.texts())]
    assert set(rewards) == {-1.0}
    report.page.fill("#search", "message 250 say")
    assert report.items() == [asked_about(250)]


@pytest.mark.ci
def test_episodes_can_be_searched_and_sorted(report: OpenPage) -> None:
    report.page.fill("#search", "why of 123")
    assert len(report.items()) == 2
    report.page.fill("#search", "no such words")
    assert report.items() == []
    report.page.fill("#search", "")
    report.page.select_option("#order", "reward")
    assert "reward -1.00" in report.texts().splitlines()[0]
    report.page.select_option("#order", "-reward")
    assert "reward 1.00" in report.texts().splitlines()[0]


@pytest.mark.ci
def test_lost_questions_and_reasons_take_three_clicks(report: OpenPage) -> None:
    report.page.click("button[data-show=lost]")
    assert report.page.inner_text("#count") == "50 of 1,000"
    shown = report.page.locator("#episode")
    assert asked_about(5) in shown.inner_text()
    assert "wrong why of 5" in shown.inner_text()
    report.page.click("#episode .tabs button:has-text('old')")
    assert "correct why of 5" in shown.inner_text()


@pytest.mark.ci
def test_an_episode_shows_its_turns_with_the_correct_source_marked(report: OpenPage) -> None:
    report.page.click("#list li:nth-child(8)")
    shown = report.page.locator("#episode")
    assert shown.locator(".turn.sampled").count() == 3
    assert shown.locator(".turn.injected").count() == 2
    marked = shown.locator(".turn.injected span.right")
    assert marked.count() == 1
    assert "id: <7@example.com>" in marked.inner_text()
    assert "<8@example.com>" not in marked.inner_text()
    assert "correct source" in shown.inner_text()
    assert SYSTEM[:30] not in shown.inner_text()
    shown.locator("summary").click()
    assert SYSTEM[:30] in shown.inner_text()
    assert asked_about(7) in shown.locator("details pre").inner_text()


@pytest.mark.ci
def test_each_sampled_token_has_its_probability(report: OpenPage) -> None:
    report.page.click("#list li:nth-child(2)")
    tokens = report.page.locator(".turn.sampled").first.locator("pre span")
    shown = "".join(tokens.all_text_contents())
    assert shown.startswith("<tool_call>")
    assert "Zoë 漢" in shown, "characters of several tokens too"
    expected = math.exp(logprobs_of(encoded("<"))[0])
    assert tokens.nth(0).get_attribute("title") == f"p = {expected:.3f}"
    assert set(tokens.evaluate_all("all => all.map(each => each.className)")) > {"", "p1"}


@pytest.mark.ci
def test_episodes_open_by_key_and_by_address(report: OpenPage, browser: "Browser", address: str) -> None:
    report.page.click("#list li:nth-child(3)")
    report.page.keyboard.press("ArrowDown")
    assert report.page.locator("#episode h3").inner_text() == asked_about(3)
    report.page.keyboard.press("ArrowUp")
    assert report.page.locator("#episode h3").inner_text() == asked_about(2)
    assert report.page.url.endswith("#q2/old/0")
    report.page.evaluate("location.hash = '#q9/old/0'")
    report.page.wait_for_function(f"document.querySelector('#episode h3').textContent === '{asked_about(9)}'")
    report.page.evaluate("location.hash = '#%'")
    again = open_page(browser, f"{address}#q77/new/0")
    assert again.page.locator("#episode h3").inner_text() == asked_about(77)
    assert again.page.locator("[aria-pressed=true]").inner_text().endswith("new")
    again.page.close()


@pytest.mark.ci
def test_every_number_of_the_table_equals_metrics_json(report: OpenPage, address: str) -> None:
    place = Path(address.removeprefix("file://")).parent / "metrics.json"
    result = EvaluationResult.model_validate_json(place.read_bytes())
    cells = report.page.locator("td[data-metric]").all_inner_texts()
    assert len([each for each in cells if each != "—"]) == sum(len(each.metrics) for each in result.policies)
    for policy in result.policies:
        for name, estimate in policy.metrics.items():
            cell = report.page.locator(f"td[data-metric='{name}'][data-policy='{policy.name}']").inner_text()
            values = (format_value(name, each) for each in (estimate.value, estimate.low, estimate.high))
            assert cell == "{} {} to {}".format(*values)
        for kind, estimate in policy.kinds.items():
            cell = report.page.locator(f"td[data-kind='{kind}'][data-policy='{policy.name}']").text_content() or ""
            values = (format_value("accuracy", each) for each in (estimate.value, estimate.low, estimate.high))
            assert cell == "{} {} to {} of {}".format(*values, estimate.questions)
    (comparison,) = result.comparisons
    gain, verdict = comparison.accuracy, report.page.locator(".comparison")
    for number in (gain.difference, gain.low, gain.high):
        assert f"{100 * number:+.1f}" in verdict.inner_text()
    assert f"{comparison.beat_rate.value:.1%} of pairs" in verdict.inner_text()
    assert verdict.locator("nav").inner_text().split("\n") == [
        f"{comparison.wins} won",
        f"{comparison.losses} lost",
        f"{comparison.ties} unchanged",
    ]


@pytest.mark.ci
def test_disagreements_of_two_judges_are_shown(browser: "Browser", place: Place, tmp_path: Path) -> None:
    evaluated, settings = invent_evaluation(place, 20, [("old", 2), ("new", 5)], doubted=4)
    found = open_page(browser, write_page(tmp_path / "report.html", evaluated, settings))
    assert "heuristic and exact" in found.page.inner_text(".about")
    measures = found.page.inner_text("#measures")
    for value in ("new: heuristic and exact", "15 of 20 answers", "kappa 0.25"):
        assert value in measures
    assert found.page.inner_text("button[data-show=disagreed][data-policy=new]") == "5 disagreements"
    found.page.click("button[data-show=disagreed][data-policy=new]")
    assert found.page.inner_text("#count") == "5 of 40"
    assert found.items() == [asked_about(number) for number in range(0, 20, 4)]
    found.page.click("#list li:nth-child(2)")
    shown = found.page.inner_text("#episode")
    assert "why of 4" in shown
    assert "doubt of 4" in shown
    assert found.faults == []
    found.page.close()


@pytest.mark.ci
def test_it_fits_a_narrow_screen(browser: "Browser", address: str) -> None:
    page = browser.new_page(viewport={"width": 420, "height": 800})
    page.goto(address)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.close()


@pytest.mark.ci
def test_a_hostile_message_is_shown_as_text(browser: "Browser", place: Place, tmp_path: Path) -> None:
    evaluated, settings = invent_evaluation(
        place, 4, [("old", 2), ("new", 3)], body=HOSTILE, question=HOSTILE, answer=HOSTILE
    )
    found = open_page(browser, write_page(tmp_path / "report.html", evaluated, settings))
    for number in range(1, 9):
        found.page.click(f"#list li:nth-child({number})")
        assert HOSTILE.replace("\u2028", "") in found.page.locator("#episode h3").text_content().replace("\u2028", "")  # type: ignore[union-attr]
        assert "<script>window.hacked = 1</script>" in found.page.locator(".turn.injected").last.inner_text()
    assert found.page.evaluate("window.hacked") is None
    assert found.page.locator("img, iframe, a, object, embed, link, base").count() == 0
    assert found.page.locator("script:not([type])").count() == 1
    assert found.page.evaluate("getComputedStyle(document.body).display") != "none"
    assert found.faults == []
    assert len(found.requests) == 1
    # Even injected scripts are blocked by the page's Content-Security-Policy.
    found.page.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'hacked = 5'}))")
    assert found.page.evaluate("window.hacked") is None
    found.page.close()


def test_data_never_ends_its_script(place: Place, tmp_path: Path) -> None:
    evaluated, settings = invent_evaluation(place, 2, [("old", 2)], body=HOSTILE, question=HOSTILE)
    write_page(tmp_path / "report.html", evaluated, settings)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    blocks = re.findall(r'<script type="application/json" id="data-[^"]+">(.*?)</script>', page, re.S)
    assert len(blocks) == 2 + 2  # prompts, the list, and two episodes
    assert all(json.loads(each) is not None and not re.search(r"[<>&\u2028]", each) for each in blocks)
