"""A Hugging Face folder, checked and staged: only data, whole, and nothing that would run as code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtb.build import files
from trtb.build.checkpoints.checkpoint_weights import is_other_form, read_weights
from trtb.build.checkpoints.json_file import load_json
from trtb.build.errors import CheckpointError, CheckpointUnsafeError

# Formats whose readers run code that the file holds.
PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
DATA_SUFFIXES = frozenset({".safetensors", ".json", ".txt", ".model", ".jinja", ".tiktoken"})
TOKENIZER_FILES = frozenset({"tokenizer.json", "tokenizer.model", "vocab.json"})


def stage_hf_folder(source: Path, target: Path, *, allow_remote_code: bool) -> None:
    """Check a Hugging Face folder and link or copy what an engine needs of it.

    Raises:
        CheckpointUnsafeError: It holds pickles, or code of its own without `allow_remote_code`.
        CheckpointError: Weights, configuration or tokenizer are missing, damaged, or disagree.
    """
    names = _list_files(source)
    if pickles := [name for name in names if Path(name).suffix.lower() in PICKLE_SUFFIXES]:
        raise CheckpointUnsafeError(
            f"{source}: {', '.join(pickles)}: pickles, which can run code when loaded; expected safetensors",
            "convert the weights to safetensors, or remove the pickles where safetensors stand beside them",
        )
    suffixes = DATA_SUFFIXES | ({".py"} if allow_remote_code else set())
    staged = [name for name in names if Path(name).suffix.lower() in suffixes and not is_other_form(name)]
    _check_json(source, staged, allow_remote_code)
    if not TOKENIZER_FILES & set(staged):
        raise CheckpointError(f"{source}: no tokenizer; expected tokenizer.json or tokenizer.model")
    read_weights(source)
    for name in staged:
        # the hub's cache holds links; what is pinned must be the file itself
        files.link_or_copy((source / name).resolve(), target / name)


def _list_files(source: Path) -> list[str]:
    """Return the names of the files at the folder's top; other forms of the weights stand in subfolders."""
    names = []
    for path in sorted(source.iterdir()):
        if path.is_symlink() and not path.exists():
            raise CheckpointError(
                f"{path}: a link to {path.readlink()}, which is not there; expected a file",
                "fetch the checkpoint again",
            )
        if path.is_file():
            names.append(path.name)
    return names


def _check_json(source: Path, names: list[str], allow_remote_code: bool) -> None:
    if "config.json" not in names:
        raise CheckpointError(f"{source}: no config.json; expected a Hugging Face model folder")
    for name in names:
        path = source / name
        if not path.stat().st_size:
            raise CheckpointError(f"{path}: 0 bytes; expected its content", "fetch the checkpoint again")
        if not name.lower().endswith(".json"):
            continue
        is_config = name.lower().endswith("config.json")
        # of a key that stands twice, one reader takes the first and another the last
        value = load_json(path, is_strict=is_config)
        if is_config and not isinstance(value, dict):
            raise CheckpointError(f"{path}: a {type(value).__name__}; expected an object")
        if is_config and _names_code(value) and not allow_remote_code:
            raise CheckpointUnsafeError(
                f"{path}: auto_map: the model needs Python code from its repository",
                "read that code, then allow remote code by name",
            )
        if name == "config.json":
            _check_architectures(path, value)


def _check_architectures(path: Path, config: dict[str, Any]) -> None:
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise CheckpointError(
            f"{path}: architectures: {str(names)[:200]}; expected a list like ['LlamaForCausalLM']",
            "give the folder of a model, not of an adapter or a tokenizer",
        )


def _names_code(value: object) -> bool:
    """Search parsed JSON, at any depth: its text can spell a key with escapes."""
    if isinstance(value, dict):
        return "auto_map" in value or any(map(_names_code, value.values()))
    return isinstance(value, list) and any(map(_names_code, value))
