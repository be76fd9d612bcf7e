"""The newest steps of a run as a timeline: what the trainer did, and which groups ran meanwhile.

The file is in the trace event format of Chrome, which https://ui.perfetto.dev opens. Times in it are in microseconds
since the start of the oldest step.
"""

import io
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gumshoe.artifacts.storage import write_atomically

_KEPT, _DRAWN = 10, 2  # steps
_MOST_LANES = 32  # of groups in the picture
_TRAINER, _GROUPS = 1, 10  # numbers of the trainer's thread, and of the first lane of groups
_COLORS = {
    "publishing": "#8e6bbf",
    "waiting": "#d9d9d9",
    "preparing": "#9fb8c8",
    "old": "#f2b134",
    "reference": "#e07b39",
    "forward": "#4c9f70",
    "backward": "#2f6690",
    "sampling": "#7fb3d5",
    "scoring": "#c0392b",
}


class Interval(NamedTuple):
    """A time in which something ran. Times are in seconds of a monotonic clock."""

    name: str
    start: float
    end: float


class GroupTime(NamedTuple):
    """When a group ran. Times are in seconds of the same clock."""

    scenario: str
    batch: int
    """Batch that it was drawn for, from 0."""
    staleness: int
    start: float
    sampled: float
    """End of its last episode."""
    end: float
    """End of its scoring."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One step: its number from 1, the trainer's phases, and the groups that belong to it."""

    step: int
    start: float
    end: float
    phases: Sequence[Interval]
    groups: Sequence[GroupTime]


@dataclass(slots=True)
class Timeline:
    """Keep the times of the newest steps in a file."""

    path: Path
    _steps: deque[StepTimes] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def add(self, times: StepTimes) -> None:
        """Add a step, and write the file again."""
        self._steps.append(times)
        trace = {"displayTimeUnit": "ms", "traceEvents": list(_trace(self._steps))}
        write_atomically(self.path, io.BytesIO(json.dumps(trace, separators=(",", ":")).encode()))


def _trace(steps: Sequence[StepTimes]) -> Iterator[dict[str, Any]]:
    first = min([steps[0].start, *(group.start for group in steps[0].groups)])

    def event(name: str, start: float, end: float, thread: int, **arguments: Any) -> dict[str, Any]:
        times = {"ts": round((start - first) * 1e6), "dur": round((end - start) * 1e6)}
        return {"name": name, "ph": "X", **times, "pid": 1, "tid": thread, "args": arguments}

    def thread(number: int, name: str) -> dict[str, Any]:
        return {"name": "thread_name", "ph": "M", "pid": 1, "tid": number, "args": {"name": name}}

    yield thread(_TRAINER, "trainer")
    for each in steps:
        yield event(f"step {each.step}", each.start, each.end, _TRAINER, step=each.step)
        for phase in each.phases:
            yield event(phase.name, phase.start, phase.end, _TRAINER, step=each.step)
    groups = sorted(((group, each.step) for each in steps for group in each.groups), key=lambda pair: pair[0].start)
    lanes = _find_lanes([(group.start, group.end) for group, _ in groups])
    for lane in range(max(lanes, default=-1) + 1):
        yield thread(_GROUPS + lane, f"groups {lane + 1}")
    for (group, step), lane in zip(groups, lanes, strict=True):
        about = {"step": step, "scenario": group.scenario, "batch": group.batch, "staleness": group.staleness}
        yield event("sampling", group.start, group.sampled, _GROUPS + lane, **about)
        yield event("scoring", group.sampled, group.end, _GROUPS + lane, **about)


def _find_lanes(times: Iterable[tuple[float, float]]) -> list[int]:
    """Return the lane of each time, sorted by start, so that those in a lane do not overlap."""
    ends, lanes = list[float](), list[int]()
    for start, end in times:
        lane = next((place for place, last in enumerate(ends) if last <= start), len(ends))
        ends[lane : lane + 1] = [end]
        lanes.append(lane)
    return lanes


def draw_timeline(path: Path) -> bytes | None:
    """Return a picture (PNG) of the newest steps in a run's file; None without a readable file."""
    try:
        events = json.loads(path.read_bytes())["traceEvents"]
        spans = [each for each in events if each["ph"] == "X"]
        shown = sorted({each["args"]["step"] for each in spans})[-_DRAWN:]
        bounds = [each for each in spans if each["name"] == f"step {each['args']['step']}"]
        bounds = [each for each in bounds if each["args"]["step"] in shown]
        start, end = bounds[0]["ts"], max(each["ts"] + each["dur"] for each in bounds)
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None
    seen = [each for each in spans if each not in bounds and each["ts"] < end and each["ts"] + each["dur"] > start]
    return _draw(seen, [(each["args"]["step"], each["ts"]) for each in bounds], (start, end))


def _draw(
    spans: Sequence[Mapping[str, Any]],
    steps: Sequence[tuple[int, float]],
    window: tuple[float, float],
) -> bytes:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    start, end = window
    most = min(_MOST_LANES, max((each["tid"] - _GROUPS + 1 for each in spans if each["tid"] >= _GROUPS), default=0))
    figure = Figure(figsize=(10, 1.9 + 0.16 * most), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    for each in spans:
        lane = each["tid"] - _GROUPS + 1 if each["tid"] >= _GROUPS else 0
        if lane > most or each["name"] not in _COLORS:
            continue
        began, ended = max(start, each["ts"]), min(end, each["ts"] + each["dur"])
        place = (0, 2.2) if not lane else (-0.6 - lane, 0.8)
        axes.broken_barh([((began - start) / 1e6, (ended - began) / 1e6)], place, facecolors=_COLORS[each["name"]])
    for number, began in steps:
        axes.axvline((began - start) / 1e6, color="black", linewidth=0.8)
        axes.text((began - start) / 1e6, 2.4, f" step {number}", fontsize=9)
    names = [name for name in _COLORS if any(each["name"] == name for each in spans)]
    axes.legend(handles=[Patch(color=_COLORS[name], label=name) for name in names], ncols=9, fontsize=8, frameon=False,
                loc="upper center", bbox_to_anchor=(0.5, -0.22 if most < 4 else -0.12))  # fmt: skip
    axes.set_yticks([1.1, *([-0.7 - most / 2] if most else [])], ["trainer", *(["groups"] if most else [])])
    axes.set(xlim=(0, (end - start) / 1e6), ylim=(-1.2 - most, 3.4), xlabel="seconds", title="Timeline")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()
