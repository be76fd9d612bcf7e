"""Record feedback as scenarios, and episodes as trajectories, for training.

Invariants: nothing is recorded unless the settings enable it. Records are published to the store completely or not at
all. They are marked with the inboxes they quote, so that `gumshoe artifacts forget` finds them.
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

from gumshoe.artifacts.private_data import mark_private
from gumshoe.artifacts.store import Store
from gumshoe.errors import GumshoeError
from gumshoe.rollouts.trajectory import Span, Trajectory
from gumshoe.scenarios.scenario import Scenario
from gumshoe.serving.settings import RecordingSettings
from gumshoe.terminal import hide_progress

KIND = "feedback"
SCENARIOS, TRAJECTORIES = "scenarios.jsonl", "trajectories.jsonl"
_REDACTED = "[redacted]"
_MAX_LINES = 1000  # maximum number of unpublished lines per file; further ones are dropped

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class FeedbackRecorder:
    """Collect records and publish them regularly. As a context manager, it publishes the rest at the end."""

    settings: RecordingSettings
    store: Store | None
    _lines: dict[str, dict[str, tuple[str | None, str]]] = field(
        default_factory=lambda: {SCENARIOS: {}, TRAJECTORIES: {}}
    )
    """Unpublished lines by file and key: the inbox that a line quotes, if any, and the line. A new line replaces the
    old one with the same key.
    """
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> "FeedbackRecorder":
        if self.store is not None:
            self._thread = threading.Thread(target=self._run, name="keeping", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._publish()

    def record_feedback(self, scenario: Scenario) -> None:
        """Record a question with its correct answer."""
        texts = {"question": self._redact(scenario.question), "answer": self._redact(scenario.answer)}
        line = scenario.model_copy(update=texts).to_json()
        self._add(SCENARIOS, scenario.digest, scenario.inbox_address, line)

    def record_episode(self, scenario: Scenario, trajectory: Trajectory) -> None:
        """Record an episode, if it is selected for the sample."""
        if random.random() < self.settings.trajectories:  # noqa: S311 - nothing secret
            line = self._redact_trajectory(trajectory).to_json()
            self._add(TRAJECTORIES, secrets.token_hex(8), scenario.inbox_address, line)

    def _redact_trajectory(self, trajectory: Trajectory) -> Trajectory:
        """Return the trajectory without redacted text, and without token IDs, which would reveal it."""
        if not self.settings.redact:
            return trajectory
        record = replace(trajectory.record, answer=self._redact(trajectory.record.answer or ""))
        spans = [Span(each.origin, self._redact(each.text)) for each in trajectory.spans]
        return replace(trajectory, spans=spans, record=record, detail=self._redact(trajectory.detail))

    def _redact(self, text: str) -> str:
        for each in self.settings.redact:
            text = re.sub(each, _REDACTED, text)
        return text

    def _add(self, file: str, key: str, inbox: str | None, line: str) -> None:
        with self._lock:
            if len(self._lines[file]) >= _MAX_LINES and key not in self._lines[file]:
                _log.warning("%s lines of %s are unpublished; a new one is dropped", _MAX_LINES, file)
                return
            self._lines[file][key] = inbox, line

    def _run(self) -> None:
        while not self._ended.wait(self.settings.every):
            self._publish()

    def _publish(self) -> None:
        with self._lock:
            lines, self._lines = self._lines, {SCENARIOS: {}, TRAJECTORIES: {}}
        if self.store is None or not any(lines.values()):
            return
        version = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        try:
            with TemporaryDirectory(prefix="gumshoe-kept-") as place, hide_progress():
                for file, kept in lines.items():
                    if kept:
                        text = "".join(f"{line}\n" for _, line in kept.values())
                        Path(place, file).write_text(text, encoding="utf-8")
                mark_private(
                    Path(place), {inbox for kept in lines.values() for inbox, _ in kept.values() if inbox is not None}
                )
                self.store.publish(Path(place), KIND, version)
        except (GumshoeError, OSError) as error:
            message = error.message_with_code if isinstance(error, GumshoeError) else error
            _log.warning("cannot publish the records, trying again later: %s", message)
            with self._lock:
                self._lines = {file: kept | self._lines[file] for file, kept in lines.items()}
