"""A custom environment, as a user would write it: a directory of notes, one per file."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from gumshoe.environments.base import DocumentSource
from gumshoe.environments.email import EmailEnvironment
from gumshoe.environments.search import SearchEnvironment
from gumshoe.environments.tools import Toolbox
from gumshoe.scenarios.scenario import Scenario

if TYPE_CHECKING:
    from datetime import date

    from gumshoe.mail.index import MailIndex


class Notes:
    """Files of a directory, by name."""

    def __init__(self, directory: Path) -> None:
        self.texts = {each.stem: each.read_text() for each in sorted(directory.glob("*.txt"))}

    def stats(self) -> dict[str, Any]:
        return {"content": str(sorted(self.texts.items()))}


class NotesEnvironment(SearchEnvironment):
    """Look up notes."""

    has_inboxes: ClassVar[bool] = False

    def __init__(self, index: Notes, scenario: Scenario, max_turns: int, *, shouting: bool = False) -> None:
        self.notes, self.max_turns, self.shouting = index, max_turns, shouting
        self.toolbox = Toolbox([self.look_up, self.return_final_answer])
        super().__init__(scenario)

    @staticmethod
    def open_index(directory: Path) -> Notes:
        return Notes(directory)

    @staticmethod
    def find_source(index: Notes, scenario: Scenario, source_id: str) -> DocumentSource | None:  # noqa: ARG004
        return DocumentSource(source_id, f"Note {source_id}") if source_id in index.texts else None

    def system_prompt(self) -> str:
        return f"Look it up in {self.max_turns} turns."

    def user_prompt(self) -> str:
        return self.scenario.question

    def listed_id(self, source_id: str) -> str | None:
        return source_id if source_id in self.notes.texts else None

    def look_up(self, word: str) -> str:
        """Look a word up.

        Args:
            word: What to look for.
        """
        found = [name for name, text in self.notes.texts.items() if word in text]
        shown = self.end_search(self.begin_search(word), found, (self.notes.texts[name] for name in found))
        return shown.upper() if self.shouting else shown

    def return_final_answer(self, answer: str, document_ids: list[str]) -> str:
        """Answer.

        Args:
            answer: The answer.
            document_ids: The notes that it stands in.
        """
        return self.finish(answer, document_ids)


class DatedEnvironment(NotesEnvironment):
    """Has a setting whose type does not exist at runtime."""

    def __init__(self, index: Notes, scenario: Scenario, max_turns: int, *, since: "date | None" = None) -> None:
        self.since = since
        super().__init__(index, scenario, max_turns)


class FiledEnvironment(NotesEnvironment):
    """Has a setting of a type that JSON does not have."""

    def __init__(self, index: Notes, scenario: Scenario, max_turns: int, *, folder: Path = Path()) -> None:
        self.folder = folder
        super().__init__(index, scenario, max_turns)


class OwnMailEnvironment(EmailEnvironment):
    """Extends a built-in environment, and notes what was made ready."""

    made_ready: ClassVar[list[Path]] = []

    @staticmethod
    def get_ready(index: "MailIndex") -> None:
        OwnMailEnvironment.made_ready.append(index.directory)
