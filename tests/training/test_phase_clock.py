"""The time of steps by phase, tokens, and the timeline."""

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from gumshoe.training.timeline import GroupTime, Interval, StepTimes, Timeline, draw_timeline


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_phase_within_another_one_interrupts_it() -> None:
    from gumshoe.training.grpo.phase_clock import PhaseClock

    clock = Clock()
    waits: list[float] = []
    phases = PhaseClock(lambda: waits.append(clock.now), clock)
    phases.start_step()
    with phases.phase("backward"):
        clock.now += 1
        with phases.phase("preparing"):
            clock.now += 2
            phases.count(7)
            with phases.phase("waiting"):
                clock.now += 4
        with phases.phase("forward"):
            clock.now += 8
            phases.count(5)
        clock.now += 16
    clock.now += 32
    assert phases.end_step() == {"waiting": 4, "preparing": 2, "forward": 8, "backward": 17, "other": 32}
    assert phases.tokens == {"preparing": 7, "forward": 5}
    assert waits == [100, 101, 103, 107, 107, 107, 115, 131], "no phase counts the work of another on the device"
    starts = [each.start for each in phases.intervals]
    assert starts == sorted(starts)
    assert sum(each.end - each.start for each in phases.intervals) == 31
    phases.start_step()
    assert (phases.end_step(), phases.tokens.total(), phases.intervals) == ({"other": 0}, 0, [])


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_ends_its_phase(error: type[BaseException]) -> None:
    from gumshoe.training.grpo.phase_clock import PhaseClock

    clock = Clock()
    phases = PhaseClock(clock=clock)
    phases.start_step()

    def fail() -> None:
        with phases.phase("forward"):
            clock.now += 3
            raise error

    with pytest.raises(error):
        fail()
    clock.now += 1
    assert phases.end_step() == {"forward": 3, "other": 1}


def test_operations_are_counted_by_pass() -> None:
    """Two for each parameter and token of a forward pass, and as many for the backward pass of an adapter."""
    from gumshoe.training.grpo.trainer_usage import count_operations

    assert (
        count_operations(1000, {"old": 10, "reference": 20, "forward": 30}) == 2 * 1000 * (10 + 20 + 30) + 2 * 1000 * 30
    )


def test_packed_and_sharded_parameters_are_counted_whole() -> None:
    import torch

    from gumshoe.training.grpo.trainer_usage import count_values

    packed, sharded = (torch.nn.Parameter(torch.zeros(2, 3)) for _ in range(2))
    packed.quant_state = SimpleNamespace(shape=torch.Size((3, 4)))  # type: ignore[attr-defined]
    sharded.ds_numel = 24  # type: ignore[attr-defined]
    assert [count_values(each) for each in (packed, sharded, torch.nn.Parameter(torch.zeros(2, 3)))] == [12, 24, 6]


def times_of(step: int) -> StepTimes:
    """Return a step of ten seconds, which waits for four of them; its groups began in the step before."""
    start = 100.0 + 10 * step
    phases = [Interval("waiting", start, start + 4), Interval("forward", start + 4, start + 7)]
    groups = [
        GroupTime(f"q{number}", step, 1, start - 5, start + 3 - number, start + 4 - number) for number in range(3)
    ]
    return StepTimes(step, start, start + 10, phases, groups)


def test_the_newest_steps_are_in_a_trace_that_perfetto_opens(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "timeline.json")
    for step in range(1, 13):
        timeline.add(times_of(step))
    events = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    spans = [each for each in events if each["ph"] == "X"]
    assert {each["args"]["step"] for each in spans} == set(range(3, 13)), "the last ten"
    assert min(each["ts"] for each in spans) == 0
    assert {each["args"]["name"] for each in events if each["ph"] == "M"} >= {"trainer", "groups 1"}
    named = {each["name"]: each["dur"] for each in spans if each["args"]["step"] == 3}
    assert (named["step 3"], named["waiting"], named["forward"]) == (10_000_000, 4_000_000, 3_000_000)
    by_lane: dict[int, list[tuple[int, int]]] = {}
    for each in spans:
        if each["name"] in ("sampling", "scoring"):
            by_lane.setdefault(each["tid"], []).append((each["ts"], each["ts"] + each["dur"]))
    for found in by_lane.values():
        ordered = sorted(found)
        assert all(one[1] <= other[0] for one, other in pairwise(ordered)), "no overlap in a lane"
    picture = draw_timeline(tmp_path / "timeline.json")
    assert picture is not None
    assert picture.startswith(b"\x89PNG")


@pytest.mark.parametrize("text", [None, "", "{}", '{"traceEvents": []}', '{"traceEvents": [{"ph": "X"}]}', "[1]"])
def test_without_a_readable_timeline_there_is_no_picture(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    if text is not None:
        path.write_text(text)
    assert draw_timeline(path) is None
