"""Record feedback as scenarios, and episodes as trajectories, for training.

Invariants: nothing is recorded unless the settings enable it. Records are published to the store completely or not at
all. They are marked with the inboxes they quote, so that `gumshoe erase` finds them.
"""

import logging
import random
import secrets
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from gumshoe.artifacts.private_data import mark_private
from gumshoe.artifacts.store import Store
from gumshoe.errors import GumshoeError
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.scenario import Scenario
from gumshoe.serving.record_redaction import RecordRedactor
from gumshoe.serving.settings import RecordingSettings
from gumshoe.terminal import hide_progress

KIND = "feedback"
SCENARIOS, TRAJECTORIES = "scenarios.jsonl", "trajectories.jsonl"
_MAX_LINES = 1000  # maximum number of unpublished lines per file; further ones are dropped
LAST_ATTEMPTS = 20.0
"""Maximum seconds for further attempts at the end. The chart's pods have 25 after `limits.shutdown`."""
_PAUSE = 1.0  # seconds between these attempts

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Line:
    inbox: str | None
    """The inbox that the line quotes, if any."""
    text: str
    given_by: str | None
    """Pseudonym of the caller who gave the feedback; None for an episode."""


@dataclass(slots=True)
class FeedbackRecorder:
    """Collect records and publish them regularly. As a context manager, it publishes the rest at the end."""

    settings: RecordingSettings
    store: Store | None
    last_attempts: float = LAST_ATTEMPTS
    """Seconds in which the rest is tried again if the store fails at the end. Then it is lost, which is logged."""
    _lines: dict[str, dict[str, "_Line"]] = field(default_factory=lambda: {SCENARIOS: {}, TRAJECTORIES: {}})
    """Unpublished lines by file and key. A new line replaces the old one with the same key."""
    _redactor: RecordRedactor = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        self._redactor = RecordRedactor(self.settings.redact)

    def __enter__(self) -> "FeedbackRecorder":
        if self.store is not None:
            self._thread = threading.Thread(target=self._run, name="keeping", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._publish_rest()

    def record_feedback(self, scenario: Scenario) -> bool:
        """Record a question with its correct answer. Return False if redaction leaves nothing, or there is no room.

        A caller's feedback replaces only its own feedback on the same question.
        """
        redacted = self._redactor.redact_scenario(scenario)
        if redacted is None:
            return False
        key = f"{scenario.given_by} {scenario.digest}"
        return self._add(SCENARIOS, key, scenario.inbox_address, redacted.to_json(), scenario.given_by)

    def record_episode(self, scenario: Scenario, trajectory: Trajectory) -> None:
        """Record an episode, if it is selected for the sample."""
        if random.random() < self.settings.trajectories:  # noqa: S311 - nothing secret
            line = self._redactor.write_trajectory(trajectory)
            self._add(TRAJECTORIES, secrets.token_hex(8), scenario.inbox_address, line)

    def _add(self, file: str, key: str, inbox: str | None, line: str, given_by: str | None = None) -> bool:
        """Add a line to the next publication. Return False if too many wait for it already."""
        with self._lock:
            if len(self._lines[file]) >= _MAX_LINES and key not in self._lines[file]:
                _log.warning("%s lines of %s are unpublished; a new one is dropped", _MAX_LINES, file)
                return False
            self._lines[file][key] = _Line(inbox, line, given_by)
            return True

    def _run(self) -> None:
        while not self._ended.wait(self.settings.every):
            if (failure := self._publish()) is not None:
                _log.warning("cannot publish the records, trying again later: %s", failure)

    def _publish_rest(self) -> None:
        end = time.monotonic() + self.last_attempts
        while (failure := self._publish()) is not None:
            if time.monotonic() >= end:
                lost = " and ".join(f"{len(lines)} lines of {file}" for file, lines in self._lines.items() if lines)
                _log.error("%s were accepted and are lost: cannot publish them: %s", lost, failure)
                return
            _log.warning(
                "cannot publish the records, trying again for up to %g seconds: %s", self.last_attempts, failure
            )
            time.sleep(_PAUSE)

    def _publish(self) -> str | None:
        """Publish the records. If that fails, keep them and return the reason; otherwise return None."""
        with self._lock:
            lines, self._lines = self._lines, {SCENARIOS: {}, TRAJECTORIES: {}}
        if self.store is None or not any(lines.values()):
            return None
        version = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        try:
            with TemporaryDirectory(prefix="gumshoe-kept-") as place, hide_progress():
                for file, kept in lines.items():
                    if kept:
                        text = "".join(f"{each.text}\n" for each in kept.values())
                        Path(place, file).write_text(text, encoding="utf-8")
                written = [each for kept in lines.values() for each in kept.values()]
                mark_private(Path(place), {each.inbox for each in written if each.inbox is not None})
                givers = Counter(each.given_by for each in written if each.given_by is not None)
                self.store.publish(Path(place), KIND, version, settings={"given_by": dict(givers)})
        except (GumshoeError, OSError) as error:
            with self._lock:
                self._lines = {file: kept | self._lines[file] for file, kept in lines.items()}
            return error.message_with_code if isinstance(error, GumshoeError) else str(error)
        return None
