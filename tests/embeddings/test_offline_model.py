"""The packaged embedding model is the one that its authors publish; the package on PyPI has a single maintainer."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from gumshoe.artifacts.manifest import file_digest
from gumshoe.embeddings.embedder import OFFLINE_MODEL

PUBLISHED = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
"""SHA-256 at revision 1110a243fdf4706b3f48f1d95db1a4f5529b4d41 of sentence-transformers/all-MiniLM-L6-v2."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_files_have_the_published_digests(name: str) -> None:
    spec = find_spec(OFFLINE_MODEL.replace("-", "_"))
    assert spec is not None
    assert spec.origin is not None
    assert file_digest(Path(spec.origin).parent / "model" / name) == PUBLISHED[name]
