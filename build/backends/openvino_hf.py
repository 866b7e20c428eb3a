"""A Hugging Face folder as the source of an OpenVINO engine: exported by optimum-intel under its toolchain.

The exporter runs the model's own code through torch and traces it, so it is also asked what torch makes of
the quality texts: an export that thinks otherwise is refused.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

from trtb.build import __version__
from trtb.build.backends.openvino_runtime import MODEL_FILES
from trtb.build.backends.openvino_tokenizer import write_tokenizer_ir
from trtb.build.checkpoint import PinnedCheckpoint
from trtb.build.checkpoints.hf_checkpoint import Linear, read_hf, write_tokenizer
from trtb.build.checkpoints.weight_values import check_finite
from trtb.build.compatibility import installed_versions
from trtb.build.manifest import ModelShape, TokenIds
from trtb.build.steps import BuildSteps
from trtb.build.toolchain import get_toolchain
from trtb.build.worker import WORKERS, run_worker

TOOLCHAIN = "optimum"

_VERSIONS = ("openvino", "openvino-genai", "openvino-tokenizers", "tokenizers", "numpy")
_EXPORTER_VERSIONS = ("torch", "transformers", "optimum", "optimum-intel")
_REFERENCE_FILE = "reference.json"


class HfSource:
    """One Hugging Face folder, checked, and the toolchain that exports it.

    Raises:
        CheckpointError: The folder is damaged, or no model that is known here.
        ToolchainMissingError: The exporter is not installed.
    """

    def __init__(self, pinned: PinnedCheckpoint, home: Path) -> None:
        self._pinned = pinned
        self._checkpoint = read_hf(pinned.path)
        self._toolchain = get_toolchain(TOOLCHAIN, home)
        self.model: ModelShape = self._checkpoint.model
        self.tokens: TokenIds = self._checkpoint.tokens
        self.num_parameters = self._checkpoint.num_parameters
        exporter = {name: self._toolchain.versions[name] for name in _EXPORTER_VERSIONS}
        self.versions = installed_versions(_VERSIONS) | exporter

    def linears(self) -> tuple[Linear, ...]:
        """Return the kinds of matrices of a layer."""
        return self._checkpoint.linears()

    def write_tokenizer(self, folder: Path) -> None:
        """Write the engine's `tokenizer/`."""
        write_tokenizer(self._checkpoint, folder)

    def convert(self, steps: BuildSteps, tokenizer: Path, texts: list[list[int]]) -> Path:
        """Return the folder of the F16 IR, its tokenizers, and what torch makes of the texts."""

        def produce(folder: Path) -> None:
            check_finite(self._checkpoint.tensors.values())
            write_tokenizer_ir(tokenizer, folder)
            work = folder / ".work"
            reply = run_worker(
                self._toolchain.python,
                WORKERS / "openvino_export.py",
                {
                    "model_dir": str(self._checkpoint.path),
                    "output_dir": str(work / "ir"),
                    "trust_remote_code": False,  # every family that is read here is transformers' own
                    "reference_ids": texts,
                },
                log=steps.log,
                on_progress=steps.say,
                work=work,
            )
            for name in MODEL_FILES:
                (work / "ir" / name).rename(folder / name)
            (folder / _REFERENCE_FILE).write_text(json.dumps(reply["result"]) + "\n")
            shutil.rmtree(work)

        inputs = {
            "checkpoint": [[entry.path, entry.sha256] for entry in self._pinned.pin.files],
            "versions": self.versions,
            "texts": texts,
            "trtb": __version__,
        }
        return steps.run("convert", inputs, produce)

    def read_reference(self, base: Path) -> float:
        """Return the perplexity of the texts by torch, as it was found when the base was exported."""
        found = json.loads((base / _REFERENCE_FILE).read_bytes())["reference_log_probs"]
        values = [value for text in found for value in text]
        return math.exp(-sum(values) / len(values))
