"""Commands in messages: they install into the running environment, from where Gumshoe itself came."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gumshoe import installation
from gumshoe.installation import install_command


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (None, ["'gumshoe-agents[cpu]'"]),
        ('{"dir_info": {"editable": true}, "url": "file:///own%20clone"}', ["-e", "'/own clone[cpu]'"]),
        ('{"dir_info": {}, "url": "file:///clone"}', ["'/clone[cpu]'"]),
        ('{"vcs_info": {"vcs": "git"}, "url": "https://example.com/x.git"}', ["'gumshoe-agents[cpu]'"]),
    ],
)
def test_gumshoe_is_installed_from_where_it_came(
    origin: str | None, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = SimpleNamespace(read_text=lambda _: origin)
    monkeypatch.setattr(installation, "distribution", lambda _: found)
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert install_command("torch", extra="cpu") == " ".join(
        [sys.executable, "-m", "pip", "install", "torch", *expected]
    )


def test_pip_is_named_shortly_if_it_is_the_one_of_this_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: str(Path(sys.executable).with_name("pip")))
    assert install_command("vllm") == "pip install vllm"
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/pip")
    assert install_command("vllm") == f"{sys.executable} -m pip install vllm"
