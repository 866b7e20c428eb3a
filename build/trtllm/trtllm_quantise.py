"""Two roads to a TensorRT-LLM checkpoint: ModelOpt in its toolchain, or NVIDIA's scripts in the container.

The toolchain needs no GPU, measures what it made, and makes the same bytes each time. The container's
scripts know families that ModelOpt does not export by itself. What either makes is verified by the caller.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trtb.build import quality
from trtb.build.checkpoints.hf_checkpoint import HfCheckpoint, write_tokenizer
from trtb.build.checkpoints.weight_values import check_finite
from trtb.build.config import CalibrationConfig
from trtb.build.errors import CheckpointUnsupportedError
from trtb.build.manifest import write_record
from trtb.build.prompt_encoder import encode_texts
from trtb.build.steps import BuildSteps
from trtb.build.toolchain import Toolchain
from trtb.build.trtllm import trtllm_scripts
from trtb.build.trtllm.modelopt_request import WORKER_SCRIPT as EXPORT_SCRIPT
from trtb.build.trtllm.modelopt_request import ExportResult, make_request, read_result, step_inputs
from trtb.build.trtllm.trtllm_compiler import Compiler
from trtb.build.trtllm.trtllm_tensors import KNOWN_FAMILIES, CheckpointOptions
from trtb.build.worker import run_worker

if TYPE_CHECKING:
    from trtb.build.calibration import CalibrationSet

CHECKPOINT_FOLDER = "checkpoint"
EXPORT_FILE = "export.json"

# what ModelOpt exports without tensorrt_llm beside it; the worker refuses others, too
TOOLCHAIN_FAMILIES = frozenset({*KNOWN_FAMILIES, "mixtral"})


class Road(Protocol):
    """One way to make a checkpoint."""

    @property
    def source(self) -> HfCheckpoint:
        """Return what it is made from."""
        ...

    @property
    def versions(self) -> dict[str, str]:
        """Return what shapes the files, by distribution."""
        ...

    def command(self) -> tuple[str, ...]:
        """Return what is run outside this process, for a person to read."""
        ...

    def inputs(self) -> dict[str, Any]:
        """Return everything that shapes the files, the checkpoint itself apart."""
        ...

    def make(self, folder: Path, steps: BuildSteps) -> None:
        """Fill `folder` with `checkpoint/` and, where the road measures, `export.json`."""
        ...


@dataclass(frozen=True, slots=True)
class ToolchainRoad:
    """ModelOpt in a toolchain of ours."""

    source: HfCheckpoint
    options: CheckpointOptions
    calibration: CalibrationSet | None
    toolchain: Toolchain | None  # None: not installed, and only told of

    @property
    def versions(self) -> dict[str, str]:
        """Return the versions of ModelOpt and of what it stands on."""
        return self.toolchain.decisive_versions if self.toolchain else {}

    def command(self) -> tuple[str, ...]:
        """Return the worker's command."""
        python = str(self.toolchain.python) if self.toolchain else "TRTB_HOME/toolchains/modelopt/bin/python"
        return (python, str(EXPORT_SCRIPT), "request.json", "reply.json")

    def inputs(self) -> dict[str, Any]:
        """Return the request without paths; samples by their hash."""
        samples = self.calibration.sha256 if self.calibration else None
        return {"request": step_inputs(self._request(Path())) | {"token_ids": samples}}

    def make(self, folder: Path, steps: BuildSteps) -> None:
        """Quantise in a child process and keep what it says of its work."""
        assert self.toolchain is not None
        work = folder / ".work"
        (folder / CHECKPOINT_FOLDER).mkdir()
        reply = run_worker(
            self.toolchain.python,
            EXPORT_SCRIPT,
            self._request(folder / CHECKPOINT_FOLDER),
            log=steps.log,
            on_progress=steps.say,
            work=work,
        )
        shutil.rmtree(work)
        write_record(folder / EXPORT_FILE, read_result(reply["result"]))

    def _request(self, output: Path) -> dict[str, Any]:
        return make_request(
            self.source,
            self.options,
            output,
            calibration_token_ids=self.calibration.token_ids if self.calibration else (),
            quality_token_ids=_quality_token_ids(self.source),
        )


@dataclass(frozen=True, slots=True)
class ContainerRoad:
    """NVIDIA's own scripts, in the image that compiles, too."""

    source: HfCheckpoint
    options: CheckpointOptions
    calibration: CalibrationSet | None
    settings: CalibrationConfig
    image: str

    @property
    def versions(self) -> dict[str, str]:
        """Return the image: what is in it cannot change."""
        return {"container": self.image}

    def command(self) -> tuple[str, ...]:
        """Return the script's command, as it is run in the container."""
        return tuple(trtllm_scripts.script_argv(self._job()))

    def inputs(self) -> dict[str, Any]:
        """Return the script's command and the samples' hash."""
        samples = self.calibration.sha256 if self.calibration else None
        return {"command": list(self.command()), "calibration": samples}

    def make(self, folder: Path, steps: BuildSteps) -> None:
        """Run the script; it measures nothing."""
        (folder / CHECKPOINT_FOLDER).mkdir()
        trtllm_scripts.run_script(
            self.image,
            self._job(),
            self.source.path,
            folder / CHECKPOINT_FOLDER,
            texts=_decode(self.source, self.calibration.token_ids) if self.calibration else (),
            log=steps.log,
            say=steps.say,
        )

    def _job(self) -> trtllm_scripts.ScriptJob:
        options = self.options
        return trtllm_scripts.ScriptJob(
            architecture=self.source.config["architectures"][0],
            quant=options.scheme.name,
            dtype=options.dtype,
            kv_cache_dtype=options.kv_cache_dtype,
            group_size=options.group_size,
            tp_size=options.tp_size,
            pp_size=options.pp_size,
            num_samples=self.settings.num_samples,
            max_tokens=self.settings.max_tokens,
            seed=self.settings.seed,
        )


def needs_container(source: HfCheckpoint, asked: str, compiler: Compiler | None) -> bool:
    """Return whether the container's scripts make the checkpoint; `asked` is the config's `quantise_with`.

    Raises:
        CheckpointUnsupportedError: They would have to, and there is no container here.
    """
    family = str(source.config["model_type"])
    if asked == "container" or (asked == "auto" and family not in TOOLCHAIN_FAMILIES):
        if compiler is None or compiler.image is None:
            raise CheckpointUnsupportedError(
                f"{source.path}: model_type {family!r}: quantised by the scripts of NVIDIA's container, "
                f"which this build does not use",
                "use --compile-with docker on a machine with docker and a GPU"
                + ("" if asked == "container" else f"; without: {', '.join(sorted(TOOLCHAIN_FAMILIES))}"),
            )
        return True
    return False


def quantise(road: Road, folder: Path, steps: BuildSteps) -> None:
    """Make a checkpoint in `folder`; before any work, every weight of the source is read once.

    Raises:
        CheckpointError: A weight is not a number.
        BuildError: The road's end was not reached.
    """
    steps.say("quantise", "reading every weight once")
    check_finite(road.source.tensors.values())
    road.make(folder, steps)


def read_export(quantised: Path) -> ExportResult | None:
    """Return what the worker said of its work; None where the road did not measure."""
    path = quantised / EXPORT_FILE
    return ExportResult.model_validate_json(path.read_bytes()) if path.is_file() else None


def _quality_token_ids(source: HfCheckpoint) -> list[list[int]]:
    with tempfile.TemporaryDirectory(prefix="trtb-tokenizer-") as name:
        write_tokenizer(source, Path(name))
        return encode_texts(Path(name), quality.quality_texts())


def _decode(source: HfCheckpoint, samples: Sequence[Sequence[int]]) -> list[str]:
    from tokenizers import Tokenizer

    with tempfile.TemporaryDirectory(prefix="trtb-tokenizer-") as name:
        write_tokenizer(source, Path(name))
        fast = Tokenizer.from_file(str(Path(name) / "tokenizer.json"))
    return [fast.decode(list(sample), skip_special_tokens=False) for sample in samples]
