"""Test the documentation of the API in a real browser, under its Content-Security-Policy."""

from typing import TYPE_CHECKING

import pytest

from tests.serving.agent_server import AgentProcess
from tests.serving.test_page import expect, open_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.ci


def test_operations_are_shown_and_can_be_tried(browser: "Browser", server: AgentProcess) -> None:
    """The page loads nothing from other servers, and logs no error."""
    for page in open_page(browser, server.url):
        page.goto(f"{server.url}/docs")
        expect(page.locator("h1, h2").first).to_contain_text("Gumshoe")
        expect(page.locator(".opblock")).to_have_count(8)
        operation = page.locator("#operations-operations-get_health")
        operation.locator(".opblock-summary-control").click()
        operation.get_by_role("button", name="Execute").click()
        expect(operation.locator(".live-responses-table")).to_contain_text('"status": "ok"')
