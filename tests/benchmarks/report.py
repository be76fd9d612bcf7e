"""Measure how fast a report of each size is in a browser: `python -m tests.benchmarks.report`.

The numbers are medians in milliseconds, to load the page, filter its list, and open an episode.
"""

import shutil
import statistics
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright
from rich.table import Table

from gumshoe.terminal import out
from tests.evaluation.conftest import Place
from tests.evaluation.pages import invent_evaluation, write_page
from tests.inference.fake_vllm import write_tokenizer
from tests.mail.mailbox import make_index, record
from tests.scenarios.questions import question, write_questions

SIZES = (100, 1000, 4000)  # trajectories
RUNS = 5
_TIMED = "() => { const t = performance.now(); %s; return performance.now() - t }"
_FILTER = _TIMED % "at('show').value = '{}'; list(); at('list').offsetHeight"
_OPEN = _TIMED % "open(episodes[{}]); at('episode').offsetHeight"
_LOADED = "performance.getEntriesByType('navigation')[0].loadEventEnd"


def _median(page: Page, script: str, value: object) -> float:
    return statistics.median(float(page.evaluate(script.replace("{}", str(value)))) for _ in range(RUNS))


def main() -> None:
    """Print one table."""
    table = Table("trajectories", "MB", "load, ms", "filter, ms", "open, ms")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        directory = Path(scratch)
        index = make_index(directory / "mail", map(record, range(1, 25))).path.parent
        scenarios = write_questions(directory / "q.jsonl", [question(1)])
        place = Place(index, Path(scenarios), write_tokenizer(directory / "model"))
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        for size in SIZES:
            address = write_page(
                directory / f"{size}.html", *invent_evaluation(place, size // 2, [("old", 2), ("new", 5)])
            )
            loads = []
            for _ in range(RUNS):
                page = browser.new_page()
                page.goto(address, wait_until="load")
                page.wait_for_function(f"{_LOADED} > 0")
                loads.append(float(page.evaluate(_LOADED)))
            filters = [_median(page, _FILTER, name) for name in ("wrong", "")]
            opening = _median(page, _OPEN, size // 3)
            megabytes = (directory / f"{size}.html").stat().st_size / 1e6
            shown = (statistics.median(loads), statistics.median(filters), opening)
            table.add_row(f"{size:,}", f"{megabytes:.1f}", *(f"{each:,.0f}" for each in shown))
    out.print(table)


if __name__ == "__main__":
    main()
