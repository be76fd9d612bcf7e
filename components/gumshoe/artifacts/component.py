"""Pipeline steps that fetch and publish adapters."""

from kfp import dsl


@dsl.component(base_image="gumshoe-worker", install_kfp_package=False)
def publish_adapter(
    adapter: dsl.Input[dsl.Model],
    decision: dsl.Input[dsl.Artifact],
    store: str,
    version: str,
    image: str,
    published: dsl.Output[dsl.Model],
) -> str:
    """Publish an adapter that passed the gate, with the gate's decision, and return its reference in the store.

    Args:
        adapter: Directory of the adapter.
        decision: Decision of the gate. Its metadata names the report in the store.
        store: URI of the project's artifacts.
        version: Version to publish as. Each version is used once.
        image: Container image that the adapter was made in.
        published: The same adapter, as a model.
    """
    import json
    import shutil
    from pathlib import Path

    from gumshoe.artifacts.model_card import find_base_revision, write_model_card
    from gumshoe.artifacts.store import Store

    place = Path(published.path)
    shutil.copytree(adapter.path, place, dirs_exist_ok=True)
    shutil.copyfile(decision.path, place / "gate.json")
    write_model_card(place)
    decided = json.loads(Path(decision.path).read_text(encoding="utf-8"))
    settings = {**adapter.metadata, "gate": decided["why"], **find_base_revision(place)}
    if report := decision.metadata.get("report"):
        settings["report"] = report
    if memorized := decided.get("memorised"):
        settings["memorised"] = {name: memorized[name]["value"] for name in ("exposure", "extracted")}
    # A run that is repeated measures again, e.g. other seconds, so its verdict may differ a little.
    verdict = ("gate.json", "README.md")
    manifest = (
        Store(store).publish(place, "adapters", version, settings=settings, image=image, may_differ=verdict).manifest
    )
    published.metadata.update(settings, version=version, content=manifest.content, store=store)
    print(f"Published {manifest.reference} in {store}")
    return manifest.reference


@dsl.component(base_image="gumshoe-worker", install_kfp_package=False)
def fetch_adapter(store: str, version: str, adapter: dsl.Output[dsl.Model], run: str = "") -> str:
    """Fetch a published adapter and return its version. Without an adapter, both are empty.

    Args:
        store: URI of the project's artifacts.
        version: A version; `latest` for the newest, if one was published; `base` for no adapter.
        adapter: Directory of the adapter.
        run: ID of the run that will compare its own adapter with this one. With it, `latest` skips adapters that were
            rolled back as canaries, and the adapter of the run itself. A run that is submitted again compares with the
            same version, so that it has the same result.
    """
    from pathlib import Path

    from gumshoe.artifacts.canary_decision import find_latest_accepted
    from gumshoe.artifacts.run_inputs import record_input
    from gumshoe.artifacts.store import Store
    from gumshoe.errors import UsageError

    opened = Store(store)
    if version == "latest":
        found = (find_latest_accepted(opened, run) if run else opened.latest("adapters")) or "base"
        version = record_input(opened, run, "current", found)
        if version not in ("base", found) and opened.find(f"adapters/{version}") is None:
            raise UsageError(
                "artifacts.recorded-adapter-removed",
                f"run {run} was compared with adapters/{version} when it was submitted first, and that was removed "
                f"from {store}; set against, e.g. to {found}, or submit the run with another ID",
            )
    if version == "base":
        Path(adapter.path).mkdir(parents=True)
        (Path(adapter.path) / "none").touch()  # Kubeflow does not keep empty directories
        print("No adapter to fetch")
        return ""
    fetched = opened.fetch(f"adapters/{version}", Path(adapter.path)).manifest
    adapter.metadata.update(fetched.settings, version=fetched.version, content=fetched.content)
    print(f"Fetched {fetched.reference} from {store}")
    return fetched.version
