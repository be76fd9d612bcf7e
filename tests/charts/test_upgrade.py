"""Test that releases of the chart can be upgraded: their values are accepted, and nothing immutable changes."""

from copy import deepcopy

import pytest

from tests.charts.releases import list_breaks, read_releases, summarize
from tests.charts.test_agent_chart import render, values_of

RELEASED = read_releases()


def test_a_release_is_recorded() -> None:
    assert RELEASED


@pytest.mark.parametrize("release", RELEASED)
def test_a_release_can_be_upgraded(release: str) -> None:
    recorded = RELEASED[release]
    assert recorded["objects"]
    assert list_breaks(recorded["objects"], summarize(render(recorded["values"]))) == []


def test_an_upgrade_that_cannot_work_is_found() -> None:
    objects = render(values_of("standard"))
    changed = deepcopy(objects)
    changed["Deployment", "mail-gumshoe-agent-agent"]["spec"]["selector"]["matchLabels"]["more"] = "yes"
    changed["InferenceService", "mail-gumshoe-agent"]["metadata"]["annotations"] = {}
    del changed["Service", "mail-gumshoe-agent-model"]
    del changed["Pod", "mail-gumshoe-agent-test"]  # a hook
    assert list_breaks(summarize(objects), summarize(changed)) == [
        "Service/mail-gumshoe-agent-model",
        "Deployment/mail-gumshoe-agent-agent: spec.selector",
        "InferenceService/mail-gumshoe-agent: metadata.annotations.serving.kserve.io/deploymentMode",
    ]
