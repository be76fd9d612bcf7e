"""The pipeline's steps that look at sources, and that fetch and publish adapters."""

from typing import NamedTuple

from kfp import dsl


@dsl.component(base_image="gumshoe-worker", install_kfp_package=False)
def look_at_sources(  # as Kubeflow has several outputs
    sources: list, scenarios: str
) -> NamedTuple("States", [("sources", str), ("scenarios", str)]):  # type: ignore[valid-type]
    """Say what lies at the sources now, so that what was made of them before is used only where nothing has changed.

    Args:
        sources: Of mail or of documents.
        scenarios: As `gumshoe scenarios load` takes it.
    """
    from gumshoe.artifacts.uri_state import digest_of_uris

    return digest_of_uris(sources), digest_of_uris([scenarios])


@dsl.component(base_image="gumshoe-worker", install_kfp_package=False)
def publish_adapter(
    adapter: dsl.Input[dsl.Model],
    decision: dsl.Input[dsl.Artifact],
    store: str,
    version: str,
    image: str,
    published: dsl.Output[dsl.Model],
) -> str:
    """Publish an adapter that the gate let pass, with what the gate said; its reference in the store.

    Args:
        adapter: Its directory.
        decision: What the gate said.
        store: The URI of a project's artifacts.
        version: Used once, ever.
        image: The image that it was made in.
        published: The same adapter as a model.
    """
    import json
    import shutil
    from pathlib import Path

    from gumshoe.artifacts.store import Store

    place = Path(published.path)
    shutil.copytree(adapter.path, place, dirs_exist_ok=True)
    shutil.copyfile(decision.path, place / "gate.json")
    why = json.loads(Path(decision.path).read_text(encoding="utf-8"))["why"]
    settings = {**adapter.metadata, "gate": why}
    manifest = Store(store).publish(place, "adapters", version, settings=settings, image=image).manifest
    published.metadata.update(settings, version=version, content=manifest.content, store=store)
    print(f"Published {manifest.reference} in {store}")
    return manifest.reference


@dsl.component(base_image="gumshoe-worker", install_kfp_package=False)
def fetch_adapter(store: str, version: str, adapter: dsl.Output[dsl.Model]) -> str:
    """Fetch a published adapter; its version. Where `latest` is asked for and none was published, it is empty.

    Args:
        store: The URI of a project's artifacts.
        version: A version, or `latest`.
        adapter: Its directory.
    """
    from pathlib import Path

    from gumshoe.artifacts.store import Store

    kept = Store(store)
    if version == "latest" and kept.latest("adapters") is None:
        Path(adapter.path).mkdir(parents=True)
        (Path(adapter.path) / "none").touch()
        print("No adapter was published yet")
        return ""
    found = kept.fetch(f"adapters/{version}", Path(adapter.path)).manifest
    adapter.metadata.update(found.settings, version=found.version, content=found.content)
    print(f"{found.reference} of {store}")
    return found.version
