"""Write the model card of an adapter: what it is, what it was trained on, how good it is, and how to load it."""

import io
import json
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gumshoe.artifacts.adapter_layout import round_up_lora_rank
from gumshoe.artifacts.storage import write_atomically

CARD = "README.md"
BASE_RECORD = "base_model.json"
"""File in an adapter's directory with its base model. See `gumshoe.training.models.base_model.AdapterBase`."""
_SHORT = 12  # characters of a digest


def write_model_card(directory: Path, metadata: dict[str, Any] | None = None) -> None:
    """Write `README.md` into the directory of an adapter, from the files beside it.

    These are `adapter_config.json` of peft, and those of the following that exist: `metadata.json` (the run),
    `base_model.json`, `environment.json`, `scenarios.json` (the questions it has seen) and `gate.json` (the comparison
    with its base model or another adapter). `metadata` is the content of `metadata.json`, if it is written later.
    The front matter is that of the Hugging Face Hub (https://huggingface.co/docs/hub/model-cards).
    """
    text = "\n".join(_render_card(_CardFacts(directory, metadata)))
    write_atomically(directory / CARD, io.BytesIO(f"{text.rstrip()}\n".encode()))


def find_base_revision(directory: Path) -> dict[str, str]:
    """Return the commit of an adapter's base model on the hub as a setting of its manifest, if it is known."""
    revision = _read(directory / BASE_RECORD).get("revision")
    return {"base_model_revision": revision} if revision else {}


def is_hub_model(base: str, record: Mapping[str, Any]) -> bool:
    """Return True if a base model is on the Hugging Face Hub, as its name and its record in an adapter tell.

    `record` is the content of `base_model.json`; it may be empty. Relative directories may have the form of a name on
    the hub, but a model with a fingerprint and without a revision was in a directory of its own.

    >>> is_hub_model("Qwen/Qwen3-4B", {}), is_hub_model("outputs/base", {"name": "outputs/base", "fingerprint": "4e2c"})
    (True, False)
    """
    repository = base.partition(":")[0]
    is_own = str(record.get("name")).partition(":")[0] == repository and bool(record.get("fingerprint"))
    has_form = repository.count("/") == 1 and not repository.startswith((".", "/", "~"))
    return has_form and not (is_own and not record.get("revision"))


class _CardFacts:
    """The content of the files that a card is written from."""

    def __init__(self, directory: Path, metadata: dict[str, Any] | None) -> None:
        self.config = _read(directory / "adapter_config.json")
        self.run = metadata or _read(directory / "metadata.json")
        self.lineage = _read(directory / "scenarios.json")
        self.gate = _read(directory / "gate.json")
        settings = self.run.get("settings", {})
        base = str(settings.get("model", {}).get("name") or self.config.get("base_model_name_or_path") or "unknown")
        record = _read(directory / BASE_RECORD)
        self.is_on_hub = is_hub_model(base, record)
        # The card does not tell the directory on this machine, nor that of a converted model in its cache.
        self.base = base.partition(":")[0] if self.is_on_hub else Path(record.get("name") or base).name
        self.has_inboxes = _read(directory / "environment.json").get("name") == "email"
        self.algorithm = settings.get("optimizer", {}).get("algorithm", {}).get("name")
        self.mode = settings.get("mode")
        agent = settings.get("agent") or {}
        self.agent = str(agent.get("name") or "AGENT") if agent else ""
        """Name of the agent that ran the episodes, AGENT for a program, whose path is not shown; empty without one."""

    @property
    def name(self) -> str:
        return f"{self.run['run']}, step {self.run['step']}" if self.run.get("run") else "without a run"


def _render_card(facts: _CardFacts) -> Iterator[str]:
    yield from ["---", _render_front_matter(facts), "---", "", f"# Adapter {facts.name}", ""]
    rank = facts.config.get("r")
    yield f"A LoRA adapter (rank {rank}) that makes `{facts.base}` a search agent. It was trained with Gumshoe"
    yield f"{version('gumshoe-agents')}" + (f", {facts.algorithm} in mode {facts.mode}." if facts.algorithm else ".")
    yield "It calls the tools of its environment, and answers with the sources. Use it with the chat template and the"
    yield "tools that it was trained with; `gumshoe serve` and `gumshoe ask` do so."
    yield from _render_results(facts.gate)
    yield from _render_data(facts)
    yield from _render_loading(facts)


def _render_front_matter(facts: _CardFacts) -> str:
    from huggingface_hub import EvalResult, ModelCardData  # slow to import

    accuracy = facts.gate.get("comparison", {}).get("accuracy", {}).get("candidate")
    results = [EvalResult("question-answering", "private", "test questions", "accuracy", accuracy)]
    data = ModelCardData(
        base_model=facts.base if facts.is_on_hub else None,
        library_name="peft",
        pipeline_tag="text-generation",
        tags=["lora", "gumshoe", "search-agent", *filter(None, [facts.algorithm])],
        model_name=facts.name if accuracy is not None else None,
        eval_results=results if accuracy is not None else None,
    )
    return str(data.to_yaml())


def _render_results(gate: dict[str, Any]) -> Iterator[str]:
    yield from ["", "## Results", ""]
    if not gate:
        yield "It has not been evaluated on the test split yet."
        return
    found = gate["comparison"]
    accuracy, level = found["accuracy"], found["level"]
    yield f"On {found['questions']:,} test questions, which it has not seen in training:"
    yield from ["", "| | correct |", "|---|---|"]
    yield f"| {found['baseline']} | {accuracy['baseline']:.1%} |"
    yield f"| this adapter | {accuracy['candidate']:.1%} |"
    interval = f"{accuracy['low']:+.1%} to {accuracy['high']:+.1%}"
    yield f"| difference, with its {level:.0%} interval | {accuracy['difference']:+.1%} ({interval}) |"
    yield from ["", f"p-value (McNemar's exact test): {found['p_value']:.3g}. {gate['why']}"]
    if gate.get("memorised"):
        yield from _render_memorization(gate["memorised"])


def _render_memorization(found: dict[str, Any]) -> Iterator[str]:
    """Yield a section about the canaries in the training mail that the adapter memorized."""
    yield from ["", "## Memorized training mail", ""]
    yield "Invented secrets (canaries) were planted in the training mail, and asked for from other inboxes. Controls"
    yield "were planted nowhere."
    yield from ["", "| | canaries | controls |", "|---|---|---|"]
    yield f"| exposure, bits | {found['exposure']['value']:.2f} | {found['control_exposure']['value']:.2f} |"
    yield f"| extracted | {found['extracted']['value']:.1%} | {found['control_extracted']['value']:.1%} |"
    interval = f"{found['extracted']['low']:.1%} to {found['extracted']['high']:.1%}"
    yield from ["", f"The share of extracted canaries is {interval} with 95 % confidence, of"]
    yield f"{found['extracted']['questions']:,} canaries with {found['episodes']:,} episodes each. A policy that does"
    yield f"not know them has an exposure of 1.44 bits on average; p-value of the difference: {found['p_value']:.2g}."


def _render_data(facts: _CardFacts) -> Iterator[str]:
    yield from ["", "## Trained on", ""]
    learned, chosen = (facts.lineage.get(each) or {} for each in ("learned_from", "chosen_on"))
    for record, use in ((learned, "trained on"), (chosen, "used to choose the checkpoint")):
        if record.get("ids"):
            yield f"- {len(record['ids']):,} questions {use} (SHA-256 `{record['content'][:_SHORT]}…`)"
    sources = facts.lineage.get("sources") or {}
    if sources.get("inboxes"):
        kind = "invented " if sources.get("is_invented") else ""
        yield f"- the mail of {len(sources['inboxes']):,} {kind}inboxes, as salted hashes in `scenarios.json`; bind it"
        yield "  to them in service with `model.bound`"
    if facts.lineage.get("before"):
        yield "- it started from another adapter, whose questions it has seen as well (`scenarios.json`)"
    if facts.run.get("searched"):
        yield f"- searched index: `{facts.run['searched'][:_SHORT]}…`"
    versions = ", ".join(f"{name} {number}" for name, number in facts.run.get("versions", {}).items())
    if versions:
        yield f"- software: {versions}"
    yield from [
        "",
        "Its weights may reproduce text of the mail or documents that it was trained on: share it only with",
    ]
    yield "people who may read these."


def _render_loading(facts: _CardFacts) -> Iterator[str]:
    base = facts.base if facts.is_on_hub else "BASE"
    named = "" if facts.is_on_hub else f", BASE the one of {facts.base}"
    rank = round_up_lora_rank(facts.config.get("r", 1))
    yield from ["", "## Load it", "", f"DIR is this directory{named}. With vLLM:", "", "```sh"]
    yield f"vllm serve {base} --enable-lora --max-lora-rank {rank} --lora-modules agent=DIR"
    yield from ["```", "", "With transformers and peft:", "", "```python"]
    yield "from peft import PeftModel"
    yield "from transformers import AutoModelForCausalLM, AutoTokenizer"
    yield from ["", f'model = AutoModelForCausalLM.from_pretrained("{base}", dtype="auto")']
    yield 'model = PeftModel.from_pretrained(model, "DIR")'
    yield 'tokenizer = AutoTokenizer.from_pretrained("DIR")'
    options = " --inbox ADDRESS" if facts.has_inboxes else ""
    options += f" --agent {facts.agent}" if facts.agent else ""
    yield from ["```", "", f"As an agent: `gumshoe ask QUESTION --adapter DIR --index INDEX{options}`."]
    if facts.agent == "AGENT":
        yield "AGENT is the program that ran the episodes of its training."


def _read(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file, or an empty one if the file does not exist."""
    if not path.is_file():
        return {}
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found
