"""What users asked, kept for training: what they said of answers as scenarios, and episodes as trajectories.

What always holds: nothing is kept unless the settings say so; what is kept is published in the store whole or not at
all, and bears the mark of the inboxes that it quotes, so that `gumshoe artifacts forget` finds it.
"""

import logging
import random
import re
import secrets
import threading
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from gumshoe.artifacts.private_data import mark
from gumshoe.artifacts.store import Store
from gumshoe.errors import GumshoeError
from gumshoe.rollouts.trajectory import Segment, Trajectory
from gumshoe.scenarios.scenario import Scenario
from gumshoe.serving.settings import RecordingSettings
from gumshoe.terminal import quiet

KIND = "feedback"
SCENARIOS, TRAJECTORIES = "scenarios.jsonl", "trajectories.jsonl"
_REDACTED = "[redacted]"
_MOST = 1000  # lines that wait; what comes beside them is not kept

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class FeedbackRecorder:
    """Gathers what is to be kept, and publishes it now and then. A context manager: its end publishes the rest."""

    settings: RecordingSettings
    store: Store | None
    _lines: dict[str, dict[str, tuple[str | None, str]]] = field(
        default_factory=lambda: {SCENARIOS: {}, TRAJECTORIES: {}}
    )
    """By file and by what a line is about, of which the latest counts: the inbox that it quotes, if any, and the
    line."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> "FeedbackRecorder":
        if self.store is not None:
            self._thread = threading.Thread(target=self._work, name="keeping", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._publish()

    def feedback(self, scenario: Scenario) -> None:
        """Keep a question with the answer that is right, as somebody said."""
        texts = {"question": self._without(scenario.question), "answer": self._without(scenario.answer)}
        line = scenario.model_copy(update=texts).to_json()
        self._keep(SCENARIOS, scenario.digest, scenario.inbox_address, line)

    def episode(self, scenario: Scenario, trajectory: Trajectory) -> None:
        """Keep an episode, if it is one of the sample."""
        if random.random() < self.settings.trajectories:  # noqa: S311 - nothing secret
            line = self._redacted(trajectory).to_json()
            self._keep(TRAJECTORIES, secrets.token_hex(8), scenario.inbox_address, line)

    def _redacted(self, trajectory: Trajectory) -> Trajectory:
        """Without what is not to be kept; token ids would say it all the same."""
        if not self.settings.redact:
            return trajectory
        record = replace(trajectory.record, answer=self._without(trajectory.record.answer or ""))
        segments = [Segment(each.origin, self._without(each.text)) for each in trajectory.segments]
        return replace(trajectory, segments=segments, record=record, detail=self._without(trajectory.detail))

    def _without(self, text: str) -> str:
        for each in self.settings.redact:
            text = re.sub(each, _REDACTED, text)
        return text

    def _keep(self, file: str, about: str, inbox: str | None, line: str) -> None:
        with self._lock:
            if len(self._lines[file]) >= _MOST and about not in self._lines[file]:
                _log.warning("%s lines of %s wait to be published; another is left out", _MOST, file)
                return
            self._lines[file][about] = inbox, line

    def _work(self) -> None:
        while not self._ended.wait(self.settings.every):
            self._publish()

    def _publish(self) -> None:
        with self._lock:
            lines, self._lines = self._lines, {SCENARIOS: {}, TRAJECTORIES: {}}
        if self.store is None or not any(lines.values()):
            return
        version = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        try:
            with TemporaryDirectory(prefix="gumshoe-kept-") as place, quiet():
                for file, kept in lines.items():
                    if kept:
                        text = "".join(f"{line}\n" for _, line in kept.values())
                        Path(place, file).write_text(text, encoding="utf-8")
                mark(Path(place), {inbox for kept in lines.values() for inbox, _ in kept.values() if inbox is not None})
                self.store.publish(Path(place), KIND, version)
        except (GumshoeError, OSError) as error:
            said = error.message_with_code if isinstance(error, GumshoeError) else error
            _log.warning("cannot publish what was kept, trying again later: %s", said)
            with self._lock:
                self._lines = {file: kept | self._lines[file] for file, kept in lines.items()}
