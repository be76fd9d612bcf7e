"""All targets of fuzzing."""

from tests.fuzzing.fuzz_target import FuzzTarget
from tests.fuzzing.targets.attachment_targets import ATTACHMENT_TARGETS
from tests.fuzzing.targets.call_targets import CALL_TARGETS
from tests.fuzzing.targets.file_targets import FILE_TARGETS
from tests.fuzzing.targets.http_targets import HTTP_TARGETS
from tests.fuzzing.targets.index_targets import INDEX_TARGETS
from tests.fuzzing.targets.message_targets import MESSAGE_TARGETS

TARGETS: tuple[FuzzTarget, ...] = (
    *MESSAGE_TARGETS,
    *ATTACHMENT_TARGETS,
    *CALL_TARGETS,
    *FILE_TARGETS,
    *INDEX_TARGETS,
    *HTTP_TARGETS,
)
