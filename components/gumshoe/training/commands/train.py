"""The commands `gumshoe train` and `gumshoe warm-start`."""

from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gumshoe.artifacts.storage import make_writable_directory
from gumshoe.completion import complete_judge, complete_model, complete_words
from gumshoe.errors import UsageError
from gumshoe.installation import install_command
from gumshoe.rollouts.commands import AgentOption, EnvironmentOption, IndexOption
from gumshoe.terminal import JsonFlag, err, out, print_json, print_next, printable

if TYPE_CHECKING:
    from gumshoe.training.settings import TrainSettings
    from gumshoe.training.sft.gold_demonstrations import GoldReport

train = typer.Typer(add_completion=False)
warm_start = typer.Typer(add_completion=False)


def _complete_config() -> list[str]:
    from gumshoe.training.settings_sources import CONFIGS

    return sorted(each.stem for each in CONFIGS.glob("*.yaml"))


def _complete_setting() -> list[tuple[str, str]]:
    from gumshoe.training.settings import list_settings

    return [(f"{name}=", description) for name, description in list_settings()]


ModelOption = Annotated[
    str | None, typer.Option(metavar="DIR|NAME", autocompletion=complete_model, help="Base model, e.g. smollm2-135m.")
]
ConfigOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        autocompletion=_complete_config,
        help="Settings in YAML: a path, a file:// or s3:// URI, or a name such as tiny.",
    ),
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        autocompletion=_complete_setting,
        help="Override one setting, e.g. optimizer.learning_rate=1e-5.",
    ),
]


@train.command(
    epilog="""
    gumshoe train --index index --scenarios questions.jsonl --out outputs/run \\
      --model tiny --config tiny
    gumshoe train --index index --scenarios questions.jsonl --out outputs/run \\
      --model Qwen/Qwen2.5-7B-Instruct --set optimizer.max_steps=200
    """
)
def run(
    index: Annotated[
        Path | None,
        typer.Option(
            "--index", envvar="GUMSHOE_INDEX", metavar="DIR", help="Directory of an index of mail or documents."
        ),
    ] = None,
    scenarios: Annotated[
        str | None, typer.Option(metavar="FILE", help="Scenarios: a file, or a source as for `gumshoe scenarios load`.")
    ] = None,
    model: ModelOption = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE",
            autocompletion=complete_words("vllm", "transformers"),
            help="Engine that runs the rollouts: vllm or transformers.",
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            autocompletion=complete_words(
                ("masked", "the tokens that the policy sampled"),
                ("rollout", "also the tokens of tool results"),
                ("simple", "static prompts, without an environment"),
            ),
            help="Which tokens are trained on: masked, rollout or simple.",
        ),
    ] = None,
    config: ConfigOption = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Directory for the run's files.")] = None,
    environment: EnvironmentOption = None,
    agent: AgentOption = None,
    settings: SettingsOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run from its last checkpoint.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite a run in the directory.")] = False,
    print_config: Annotated[
        bool,
        typer.Option(
            "--print-config",
            help="Check names and arguments of rewards, algorithm, judge and environment, print all settings with "
            "descriptions and sources, and exit.",
        ),
    ] = False,
) -> None:
    """Train an adapter with GRPO on episodes of an agent.

    Settings come from a YAML file, then environment variables, then flags. The same command with --resume continues a
    run that was stopped. Exits with 75 if a server or the trainer stopped making progress.
    """
    from gumshoe.training.settings_checks import check_plugins
    from gumshoe.training.settings_sources import resolve

    if resume and replace:
        raise UsageError(
            "training.option-conflict", "--resume continues a run and --replace overwrites it; leave one of them out"
        )
    flags: dict[str, Any] = dict(map(setting_of, settings or []))
    named = {"model.name": model, "rollouts.engine": engine, "mode": mode, "output.directory": out and str(out)}
    named |= {"environment": environment, "agent": agent}
    flags |= {name: value for name, value in named.items() if value is not None}
    resolved = resolve(config, flags)
    if print_config:
        check_plugins(resolved.settings)
        print(resolved.as_yaml(), end="")  # noqa: T201 - rich would wrap long lines
        return
    if index is None or scenarios is None:
        raise UsageError("training.input-missing", "training requires both --index and --scenarios")
    try:
        from gumshoe.training.launch.supervisor import train as run_supervised
        from gumshoe.training.train_request import TrainRequest
    except ModuleNotFoundError as error:
        raise UsageError(
            "training.package-missing",
            f"training requires {error.name}, which is not installed: {install_command('torch', extra='train')}",
        ) from None
    request = TrainRequest(index=str(index), scenarios=scenarios, config=config or "", settings=flags)
    directory = run_supervised(request, resume=resume, replace_run=replace)
    err.print(f"Results are in {printable(directory)}", soft_wrap=True)
    _print_evaluation(resolved.settings, directory, index, scenarios)


def _print_evaluation(settings: "TrainSettings", run: Path, index: Path, scenarios: str) -> None:
    """Print the command that evaluates a run's best adapter against its base model, in the run's environment."""
    from gumshoe.training.run_spec import BEST, FINAL

    model = settings.model.name
    base = "tiny" if model == "tiny" else f"local:{model}"
    adapter = next((run / name for name in (BEST, FINAL) if (run / name).exists()), run / FINAL)
    policies = ("--policy", f"base={base}", "--policy", f"trained={base}#{adapter}")
    place = ("--out", run.with_name(f"{run.name}-evaluation"))
    agent = ("--agent", settings.agent.word) if settings.agent else ()
    rollouts, context = settings.rollouts, settings.model.max_context
    limits = ("--max-turns", rollouts.max_turns, "--max-tokens", rollouts.max_tokens, "--max-context", context)
    word = _judge_word(settings)
    judge = ("--judge", word) if word else ()
    data = ("--index", index, "--scenarios", scenarios, *_environment_option(settings), *agent, *judge, *limits)
    print_next("gumshoe", "evaluate", *data, *policies, *place)


def _judge_word(settings: "TrainSettings") -> str:
    """Return the judge of the settings as a word, with YAML for one with settings; "" for the default."""
    judge = settings.evaluation.judge
    if judge == type(settings.evaluation)().judge:
        return ""
    return judge if isinstance(judge, str) else dumps(judge)


def _environment_option(settings: "TrainSettings") -> tuple[str, ...]:
    """Return the option that names the environment of the settings; an empty tuple if they name none."""
    return ("--environment", settings.environment.word) if settings.environment else ()


@warm_start.command(
    epilog="""
    gumshoe warm-start expert.jsonl --out adapter \\
      --index index --scenarios questions.jsonl
    gumshoe warm-start --from-gold --out adapter \\
      --index index --scenarios questions.jsonl
    """
)
def learn(
    index: IndexOption,
    scenarios: Annotated[str, typer.Option(metavar="FILE", help="Scenarios of the episodes.")],
    trajectories: Annotated[
        Path | None, typer.Argument(metavar="[TRAJECTORIES]", help="Episodes recorded by `gumshoe rollout`.")
    ] = None,
    from_gold: Annotated[
        bool,
        typer.Option(
            "--from-gold", help="Make the episodes from the scenarios and their sources, without another model."
        ),
    ] = False,
    demonstrations_only: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --from-gold, write the episodes to this file, and do not train. No --out."
        ),
    ] = None,
    place: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Directory for the adapter or model.")
    ] = None,
    model: ModelOption = None,
    judge: Annotated[
        str | None,
        typer.Option(
            metavar="WORD", autocompletion=complete_judge, help="Judge that decides which episodes are correct."
        ),
    ] = None,
    config: ConfigOption = None,
    settings: SettingsOption = None,
    environment: EnvironmentOption = None,
    full: Annotated[
        bool, typer.Option("--full", help="Train all weights, and save a base model instead of an adapter.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a warm start that was stopped.")] = False,
    json: JsonFlag = False,
) -> None:
    """Train an adapter on correct episodes, as a start for `gumshoe train --set lora.start=DIR`.

    The episodes may come from any policy, e.g. a strong chat model (`gumshoe rollout --policy chat:MODEL`). The adapter
    is trained on the turns of the policy, in episodes of the split train whose answers the judge accepts. Without a
    better policy, --from-gold makes the episodes: it searches for keywords of each question that find its source, reads
    the source, and gives the reference answer (settings: warm_start.gold). The same command with --resume continues a
    warm start that was stopped. Exits with 75 if the judge or the trainer stopped making progress.

    With --full, all weights of the model are trained instead, and saved as a base model for `gumshoe train --model DIR`
    or `--policy local:DIR`. This suits small models: training takes 16 bytes of memory per weight.
    """
    from gumshoe.training.settings_sources import resolve

    flags: dict[str, Any] = dict(map(setting_of, settings or []))
    named = {"model.name": model, "evaluation.judge": judge, "environment": environment}
    named["warm_start.weights"] = "full" if full else None
    resolved = resolve(config, flags | {name: value for name, value in named.items() if value is not None}).settings
    _check_input(trajectories, from_gold, demonstrations_only, place)
    if from_gold:
        _check_unused({"--judge": judge}, "--from-gold asks no judge")
    if demonstrations_only is not None:
        _check_unused({"--full": full, "--resume": resume}, "--demonstrations-only trains nothing")
    if demonstrations_only is not None:
        _write_gold(resolved, index, scenarios, demonstrations_only, as_json=json)
        return
    directory = make_writable_directory(place or "")
    try:
        from gumshoe.training.sft.gold_demonstrations import start_warm_from_gold
        from gumshoe.training.sft.warm_start import start_warm
    except ModuleNotFoundError as error:
        raise UsageError(
            "training.package-missing",
            f"training requires {error.name}, which is not installed: {install_command('torch', extra='train')}",
        ) from None
    if trajectories is None:
        report = start_warm_from_gold(
            resolved, index, scenarios, directory, None if json else _print_gold, resume=resume
        )
    else:
        report = start_warm(resolved, index, scenarios, trajectories, directory, resume=resume)
    if json:
        print_json(report)
        return
    out.print(
        f"[bold]{report.right:,} of {report.episodes:,} episodes are correct[/]"
        + (f", {report.too_long:,} of them too long" if report.too_long else ""),
        soft_wrap=True,
    )
    out.print(
        f"{report.tokens:,} tokens in {report.steps:,} steps, {report.seconds:,.0f} s; loss {report.loss:.3f}",
        soft_wrap=True,
    )
    _print_training(resolved, directory, index, scenarios, config, flags)


def _print_training(
    settings: "TrainSettings", directory: Path, index: Path, scenarios: str, config: str | None, given: dict[str, Any]
) -> None:
    """Print the command that trains from a warm start, in its environment and with the settings that were `given`."""
    is_full = settings.warm_start.weights == "full"
    model = ("--model", directory if is_full else settings.model.name, *(("--config", config) if config else ()))
    kept = {name: value for name, value in given.items() if not name.startswith(("warm_start.", "model.name"))}
    if judge := _judge_word(settings):
        kept["evaluation.judge"] = judge
    if not is_full:
        kept["lora.start"] = directory
    sets = [word for name, value in kept.items() for word in ("--set", f"{name}={value}")]
    data = ("--index", index, "--scenarios", scenarios, *_environment_option(settings))
    print_next("gumshoe", "train", *data, *model, *sets)


def _check_input(trajectories: Path | None, from_gold: bool, demonstrations_only: Path | None, out: str | None) -> None:
    """Check that a warm start has one input and one output.

    Raises:
        UsageError: it has none, or two.
    """
    if from_gold == (trajectories is not None):
        found = f"both were given (TRAJECTORIES {str(trajectories)!r})" if from_gold else "neither was given"
        raise UsageError(
            "training.warm-start-input", f"a warm start requires either a file of TRAJECTORIES or --from-gold; {found}"
        )
    if demonstrations_only is not None and not from_gold:
        raise UsageError("training.warm-start-input", "--demonstrations-only requires --from-gold")
    if (demonstrations_only is None) == (out is None):
        raise UsageError(
            "training.warm-start-output",
            "a warm start requires either --out or, to only write episodes, --demonstrations-only",
        )


def _check_unused(options: dict[str, object], why: str) -> None:
    """Check that options, by name, are not given. `why` says why they have no effect.

    Raises:
        UsageError: one is given.
    """
    given = [name for name, value in options.items() if value]
    if given:
        raise UsageError("training.warm-start-unused", f"{' and '.join(given)} has no effect: {why}; leave it out")


def _write_gold(settings: "TrainSettings", index: Path, scenarios: str, path: Path, *, as_json: bool) -> None:
    """Write episodes that are made from scenarios, and print their numbers."""
    from gumshoe.training.sft.gold_demonstrations import write_gold_episodes

    report = write_gold_episodes(settings, index, scenarios, path)
    if as_json:
        print_json(report)
        return
    _print_gold(report)
    print_next("gumshoe", "trajectories", "show", path)


def _print_gold(report: "GoldReport") -> None:
    """Print how many scenarios have an episode, how their sources were found, and why others have none."""
    difficulties = ", ".join(f"{count:,} {name}" for name, count in report.difficulties.items())
    out.print(
        f"[bold]{report.episodes:,} episodes for {report.answered:,} of {report.scenarios:,} scenarios[/] "
        f"({difficulties}), {report.searches:.2f} searches each",
        soft_wrap=True,
    )
    others = report.answered - report.from_question
    out.print(
        f"{report.from_question:,} need only words of the question to find a source"
        + (f", {others:,} also words of the source" if others else ""),
        soft_wrap=True,
    )
    for reason, count in report.without.items():
        out.print(f"  {count:>6,} without an episode: {reason}")


def setting_of(text: str) -> tuple[str, str]:
    """Return the name and the value of a `--set` option.

    Raises:
        UsageError: the text is not NAME=VALUE.
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(
            "settings.not-name-value", f"--set requires NAME=VALUE, e.g. optimizer.learning_rate=1e-5, got {text!r}"
        )
    return name.strip(), value
