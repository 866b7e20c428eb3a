"""A GGUF file as the source of an OpenVINO engine: rewritten as F16 or Q8_0, then read by GenAI.

The two types that GenAI's reader takes exactly; a Q8_0 rewrite is the 8-bit engine as it stands.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from trtb.build import __version__
from trtb.build.backends.openvino_runtime import gguf_to_ir
from trtb.build.checkpoint import PinnedCheckpoint
from trtb.build.checkpoints.gguf_checkpoint import check_readable, read_gguf, rewrite
from trtb.build.checkpoints.hf_checkpoint import Linear
from trtb.build.checkpoints.tokenizer import check_tokenizer, write_tokenizer
from trtb.build.compatibility import installed_versions
from trtb.build.manifest import ModelShape, TokenIds
from trtb.build.steps import BuildSteps

_VERSIONS = ("openvino", "openvino-genai", "openvino-tokenizers", "gguf", "tokenizers", "numpy")


class GgufSource:
    """One GGUF file, checked."""

    def __init__(self, pinned: PinnedCheckpoint) -> None:
        self._pinned = pinned
        self._checkpoint = read_gguf(pinned.gguf_path)
        check_readable(self._checkpoint)
        check_tokenizer(self._checkpoint)
        self.model: ModelShape = self._checkpoint.model
        self.tokens: TokenIds = self._checkpoint.tokens
        self.num_parameters = self._checkpoint.num_parameters
        self.versions = installed_versions(_VERSIONS)

    def linears(self) -> tuple[Linear, ...]:
        """Return every matrix."""
        matrices = (tensor for tensor in self._checkpoint.tensors if len(tensor.shape) > 1)
        return tuple(
            Linear(tensor.name, tensor.shape[0], tensor.shape[1], is_row_parallel=False)
            for tensor in matrices
        )

    def write_tokenizer(self, folder: Path) -> None:
        """Write the engine's `tokenizer/`."""
        write_tokenizer(self._checkpoint, folder)

    def convert(self, steps: BuildSteps, gguf_type: Literal["Q8_0", "F16"]) -> Path:
        """Return the folder of the IR and its tokenizers."""

        def produce(folder: Path) -> None:
            gguf = folder / "model.gguf"
            steps.say("rewrite", f"{self._checkpoint.path.name} as {gguf_type}")
            rewrite(self._checkpoint, gguf, gguf_type)
            steps.say("convert", f"{gguf_type} to OpenVINO IR")
            gguf_to_ir(gguf)
            gguf.unlink()

        inputs = {
            "checkpoint": [entry.sha256 for entry in self._pinned.pin.files],
            "type": gguf_type,
            "versions": self.versions,
            "trtb": __version__,
        }
        return steps.run("convert" if gguf_type == "F16" else "convert_q8_0", inputs, produce)
