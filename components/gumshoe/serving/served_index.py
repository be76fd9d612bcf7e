"""Check the index that a server answers from."""

from gumshoe.environments.registry import EnvFactory
from gumshoe.errors import UsageError
from gumshoe.mail.canary_check import has_canaries
from gumshoe.mail.schema import index_path


def check_served_index(env_factory: EnvFactory) -> None:
    """Check that users do not see canaries, which are planted for training only.

    Raises:
        UsageError: if the index of mail contains one.
        GumshoeError: if the index is damaged.
    """
    directory = env_factory.directory
    if index_path(directory).exists() and has_canaries(directory):
        raise UsageError(
            "serving.index-has-canaries",
            f"{directory} contains canaries, i.e. invented messages of `gumshoe synthesize canaries`; serve an index "
            "that is built without their mail.jsonl",
        )
