"""The report in a real browser: content, filters, and safety against injected text."""

import html
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gumshoe.evaluation.metrics import format_value
from gumshoe.evaluation.results import EvaluationResult
from gumshoe.rollouts.trajectory import Span
from tests.browser_page import OpenPage, find_violations
from tests.evaluation.conftest import Place
from tests.evaluation.pages import SYSTEM, injected, invent_evaluation, sampled, write_page
from tests.inference.fake_vllm import encoded, logprobs_of
from tests.rollouts.conversations import call
from tests.scenarios.questions import question

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOSTILE = (
    "<script>window.hacked = 1</script></script><img src=x onerror='window.hacked = 2'><!-- <style>*{display:none}"
    "</style><a href='javascript:window.hacked=3'>x</a><iframe src='https://example.com'></iframe>{{ 7 * 7 }}\u2028]]>"
    '" onmouseover="window.hacked = 4" \\u003cscript> &lt;b&gt;'
)


class ReportPage(OpenPage):
    """An open report."""

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


@pytest.fixture(scope="module")
def address(place: Place, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write a report of 1,000 trajectories: 500 questions, two policies."""
    evaluated, settings = invent_evaluation(place, 500, [("old", 2), ("new", 5)])
    directory = tmp_path_factory.mktemp("page")
    evaluated.result.write(directory)
    return write_page(directory / "report.html", evaluated, settings)


@pytest.fixture
def report(browser: "Browser", address: str) -> Iterator[ReportPage]:
    found = ReportPage.open(browser, address)
    yield found
    found.close()


@pytest.mark.nightly
def test_a_thousand_trajectories_are_listed_and_counted(report: ReportPage) -> None:
    assert report.page.inner_text("#count") == "1,000 of 1,000"
    assert len(report.items()) == 1000
    assert re.search(r"new .*80\.0%.* 500 .*old .*50\.0%", report.page.title())


@pytest.mark.ci
def test_every_filter_shows_matching_episodes(report: ReportPage) -> None:
    counts = {"wrong": 350, "correct": 650, "gained": 200, "lost": 50, "changed": 250, "source": 1}
    counts |= {"unusable": 1, "gave-up": 2}
    for value, count in counts.items():
        report.show(value)
        assert report.page.inner_text("#count") == f"{count:,} of 1,000", value
    report.page.click("#clear")
    report.wait_for("document.querySelectorAll('#list li').length === 1000")
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
def test_episodes_can_be_searched_and_sorted(report: ReportPage) -> None:
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
def test_lost_questions_and_reasons_take_three_clicks(report: ReportPage) -> None:
    report.page.click("button[data-show=lost]")
    assert report.page.inner_text("#count") == "50 of 1,000"
    shown = report.page.locator("#episode")
    assert asked_about(5) in shown.inner_text()
    assert "wrong why of 5" in shown.inner_text()
    report.page.click("#episode .tabs button:has-text('old')")
    assert "correct why of 5" in shown.inner_text()


@pytest.mark.ci
def test_an_episode_shows_its_turns_with_the_correct_source_marked(report: ReportPage) -> None:
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
def test_results_of_several_calls_and_reasoning_that_was_ended_are_named(
    browser: "Browser", place: Place, tmp_path: Path
) -> None:
    evaluated, settings = invent_evaluation(place, 2, [("old", 5)])
    trajectory = evaluated.trajectories["old"][1]
    read = "\n".join(call("read_email", message_id=f"<{each}@example.com>") for each in (9, 1))
    found, answered = injected("<tool_response>\nFound\n</tool_response>"), trajectory.spans[-1]
    trajectory.spans[1:] = [
        Span("sampled", "<think>Hm", is_continued=True),
        Span("injected", "</think>"),
        sampled(call("search_inbox", keywords=["x"])),
        found,
        *(sampled(read), injected("Message 9"), injected("Message 1")),
        *(sampled(read), found),
        answered,
    ]
    page = ReportPage.open(browser, write_page(tmp_path / "report.html", evaluated, settings)).page
    page.click("#list li:nth-child(2)")
    assert page.locator("#episode .turn > small").all_inner_texts() == [
        "turn 1: sampled",
        "injected: end of the reasoning, whose budget is used up",
        "turn 1: continued",
        "injected: search results",
        "turn 2: sampled",
        "injected: source",
        "injected: source · correct source",
        "turn 3: sampled",
        "injected: results of several calls · correct source",
        "turn 4: sampled",
    ]
    page.close()


class SpacedTokenizer:
    """Tokenizer whose text has a space before each word but the first, as that of Llama 2. It counts decoded ids."""

    def __init__(self) -> None:
        self.decoded = 0

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        self.decoded += len(ids)
        return (
            b"".join((b" a", b" b", b"\xe6", b"\xbc", b"\xa2")[each] for each in ids).decode(errors="replace").strip()
        )


def test_tokens_are_shown_with_their_spaces_without_decoding_the_turn_for_each() -> None:
    from gumshoe.evaluation.report import split_tokens

    tokenizer, ids = SpacedTokenizer(), (0, 1, 2, 3, 4, 1) * 100
    span = Span("sampled", "", ids, (0.0,) * len(ids), ())
    found = split_tokens(span, tokenizer)
    assert found[:6] == ["a", " b", "", "", "漢", " b"]
    assert "".join(found) == tokenizer.decode([*ids], skip_special_tokens=False)
    assert tokenizer.decoded < 15 * len(ids)


@pytest.mark.ci
def test_each_sampled_token_has_its_probability(report: ReportPage) -> None:
    report.page.click("#list li:nth-child(2)")
    tokens = report.page.locator(".turn.sampled").first.locator("pre span")
    shown = "".join(tokens.all_text_contents())
    assert shown.startswith("<tool_call>")
    assert "Zoë 漢" in shown, "characters of several tokens too"
    expected = math.exp(logprobs_of(encoded("<"))[0])
    assert tokens.nth(0).get_attribute("title") == f"p = {expected:.3f}"
    assert set(tokens.evaluate_all("all => all.map(each => each.className)")) > {"", "p1"}


@pytest.mark.ci
def test_episodes_open_by_key_and_by_address(report: ReportPage, browser: "Browser", address: str) -> None:
    report.page.click("#list li:nth-child(3)")
    report.page.keyboard.press("ArrowDown")
    assert report.page.locator("#episode h3").inner_text() == asked_about(3)
    report.page.keyboard.press("ArrowUp")
    assert report.page.locator("#episode h3").inner_text() == asked_about(2)
    assert report.page.url.endswith("#q2/old/0")
    report.page.evaluate("location.hash = '#q9/old/0'")
    report.wait_for(f"document.querySelector('#episode h3').textContent === '{asked_about(9)}'")
    report.page.evaluate("location.hash = '#%'")
    again = ReportPage.open(browser, f"{address}#q77/new/0")
    assert again.page.locator("#episode h3").inner_text() == asked_about(77)
    assert again.page.locator("[aria-pressed=true]").inner_text().endswith("new")
    again.close()


@pytest.mark.ci
def test_every_number_of_the_table_equals_metrics_json(report: ReportPage, address: str) -> None:
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
    assert verdict.locator(".changes").inner_text().split("\n") == [
        f"{comparison.wins} won",
        f"{comparison.losses} lost",
        f"{comparison.ties} unchanged",
    ]


@pytest.mark.ci
def test_disagreements_of_two_judges_are_shown(browser: "Browser", place: Place, tmp_path: Path) -> None:
    evaluated, settings = invent_evaluation(place, 20, [("old", 2), ("new", 5)], doubted=4)
    found = ReportPage.open(browser, write_page(tmp_path / "report.html", evaluated, settings))
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
    found.close()


@pytest.mark.ci
def test_metrics_are_readable_on_a_phone(browser: "Browser", address: str) -> None:
    found = ReportPage.open(browser, address, 390)
    cells = found.page.locator("td[data-metric]")
    boxes = cells.evaluate_all("all => all.map(each => each.getBoundingClientRect()).map(each => [each.x, each.right])")
    assert all(0 <= left < right <= 390 for left, right in boxes)
    sizes = cells.locator("small").evaluate_all("all => all.map(each => parseFloat(getComputedStyle(each).fontSize))")
    assert min(sizes) >= 12
    names = cells.evaluate_all("all => all.slice(0, 2).map(each => getComputedStyle(each, '::before').content)")
    assert "none" not in names
    found.close()


@pytest.mark.ci
@pytest.mark.parametrize(("width", "focused"), [(390, "H3"), (1280, "OL")])
def test_choosing_an_episode_scrolls_to_it(browser: "Browser", address: str, width: int, focused: str) -> None:
    found = ReportPage.open(browser, address, width)
    assert not found.is_in_view("#episode")
    found.page.click("#list li:nth-child(3)")
    assert found.is_in_view("#episode h3")
    assert found.page.evaluate("document.activeElement.tagName") == focused
    if width == 390:
        found.page.click("#back")
        assert found.is_in_view("#list [aria-selected=true]")
        assert found.page.evaluate("document.activeElement.id") == "list"
    found.close()
    linked = ReportPage.open(browser, f"{address}#q400/new/0", width)
    assert linked.is_in_view("#episode h3")
    linked.close()


@pytest.mark.ci
def test_episodes_open_in_a_sandboxed_frame(browser: "Browser", place: Place, tmp_path: Path) -> None:
    """Kubeflow shows the report so; the frame has no address that could name the episode."""
    write_page(tmp_path / "report.html", *invent_evaluation(place, 20, [("new", 5)]))
    document = html.escape((tmp_path / "report.html").read_text(encoding="utf-8"))
    (tmp_path / "frame.html").write_text(f'<iframe sandbox="allow-scripts" width=390 height=900 srcdoc="{document}">')
    found = OpenPage.open(browser, (tmp_path / "frame.html").as_uri())
    frame = found.page.frame_locator("iframe")
    frame.locator("#list li:nth-child(3)").click()
    assert frame.locator("#episode h3:focus").inner_text() == asked_about(2)
    found.close()


@pytest.mark.ci
def test_episodes_are_read_with_the_keyboard_alone(report: ReportPage) -> None:
    report.page.focus("#list")
    for key, number in (("ArrowDown", 0), ("PageDown", 10), ("End", 999), ("Home", 0), ("ArrowDown", 1)):
        report.page.keyboard.press(key)
        assert report.page.get_attribute("#list", "aria-activedescendant") == f"option{number}"
        assert report.page.locator("#list [aria-selected=true]").get_attribute("id") == f"option{number}"
    report.page.keyboard.press("Enter")
    assert report.page.evaluate("document.activeElement.textContent") == asked_about(1)
    report.page.keyboard.press("Tab")
    report.page.keyboard.press("Tab")
    report.page.keyboard.press("Enter")
    assert report.page.evaluate("document.activeElement.textContent").endswith("new"), "the focus stays on the tab"
    report.page.keyboard.press("Escape")
    assert report.page.evaluate("document.activeElement.id") == "list"


@pytest.mark.ci
def test_axe_finds_nothing_in_a_report(browser: "Browser", place: Place, tmp_path: Path) -> None:
    evaluated, settings = invent_evaluation(place, 12, [("old", 2), ("new", 5)], doubted=4)
    address = write_page(tmp_path / "report.html", evaluated, settings)
    assert find_violations(browser, f"{address}#q1/old/0") == []


@pytest.mark.ci
def test_a_hostile_message_is_shown_as_text(browser: "Browser", place: Place, tmp_path: Path) -> None:
    evaluated, settings = invent_evaluation(
        place, 4, [("old", 2), ("new", 3)], body=HOSTILE, question=HOSTILE, answer=HOSTILE
    )
    found = ReportPage.open(browser, write_page(tmp_path / "report.html", evaluated, settings))
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


def test_a_correct_source_is_marked_whose_id_has_spaces(place: Place, tmp_path: Path) -> None:
    evaluated, settings = invent_evaluation(place, 1, [("old", 2)], message_ids=["<HR leave (1)>"])
    hits = [f"Leave\n  Text\n  id: HR leave ({number})" for number in (0, 1)]
    evaluated.trajectories["old"][0].spans[2] = injected("\n".join(hits))
    write_page(tmp_path / "report.html", evaluated, settings)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    shown = json.loads(re.findall(r'id="data-e0">(.*?)</script>', page, re.S)[0])
    assert shown[2]["parts"] == [[f"{hits[0]}\n", False], [hits[1], True]]


def test_correct_sources_are_marked_under_their_handles(place: Place, tmp_path: Path) -> None:
    evaluated, settings = invent_evaluation(place, 1, [("old", 2)])
    (trajectory,) = evaluated.trajectories["old"]
    trajectory.record.handles = {"m1": "<5@example.com>", "m2": "<0@example.com>"}
    hits = [f"2001-05-01 ann@example.com: Due\n  Text\n  id: {handle}" for handle in ("m1", "m2")]
    reading = call("read_email", message_id="m2", page=2)
    trajectory.spans[2:4] = [injected("\n".join(hits)), sampled(reading)]
    write_page(tmp_path / "report.html", evaluated, settings)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    shown = json.loads(re.findall(r'id="data-e0">(.*?)</script>', page, re.S)[0])
    results = [each for each in shown if each["origin"] == "injected"]
    assert results[0]["parts"] == [[f"{hits[0]}\n", False], [hits[1], True]]
    assert [(each["what"], each["right"]) for each in results] == [("results", False), ("source", True)]


def test_data_never_ends_its_script(place: Place, tmp_path: Path) -> None:
    evaluated, settings = invent_evaluation(place, 2, [("old", 2)], body=HOSTILE, question=HOSTILE)
    write_page(tmp_path / "report.html", evaluated, settings)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    blocks = re.findall(r'<script type="application/json" id="data-[^"]+">(.*?)</script>', page, re.S)
    assert len(blocks) == 2 + 2  # prompts, the list, and two episodes
    assert all(json.loads(each) is not None and not re.search(r"[<>&\u2028]", each) for each in blocks)
