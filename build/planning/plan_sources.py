"""Where a plan's model comes from: a config.json, a folder, a GGUF file, a pinned name; no weights needed."""

from __future__ import annotations

from pathlib import Path

from trtb.build import checkpoint
from trtb.build.checkpoints.hf_config import has_tied_embeddings, read_config
from trtb.build.checkpoints.json_file import load_object
from trtb.build.errors import CheckpointUnsupportedError, ConfigError
from trtb.build.manifest import TokenIds
from trtb.build.planning.plan_memory import Sizes


def read_sizes(spec: str, home: Path) -> Sizes:
    """Return the sizes of a model; nothing is pinned or fetched.

    Args:
        spec: A path to a config.json, to a Hugging Face folder or to a .gguf file, or a pinned name.
        home: TRTB_HOME.

    Raises:
        CheckpointError: It is not there, or is damaged.
        ConfigError: It would have to be fetched first.
    """
    path = find_model(spec, home)
    name = spec.partition("@")[0] if is_name(spec) else _name_of(path)
    if path.suffix == ".gguf":
        return _sizes_of_gguf(name, path)
    file = path / "config.json" if path.is_dir() else path
    config = load_object(file)
    shape, intermediate_size, num_parameters = read_config(config)
    return Sizes(name, shape, intermediate_size, num_parameters, has_tied_embeddings(str(file), config))


def find_model(spec: str, home: Path) -> Path:
    """Return the config.json, folder or GGUF file that `spec` means.

    Raises:
        CheckpointError: Nothing here is called so.
        ConfigError: It is a hub's, and would have to be fetched.
    """
    if spec.startswith("hf:"):
        raise ConfigError(
            f"model: {spec!r}; a plan fetches nothing",
            f"fetch it (trtb models fetch {spec}), or give the path of its config.json alone",
        )
    if not is_name(spec):
        return Path(spec)
    pinned = checkpoint.resolve(spec, home)
    return pinned.gguf_path if pinned.pin.format == "gguf" else pinned.path


def to_build_spec(spec: str) -> str:
    """Return what `trtb build --model` takes for a plan's model: of a config.json, its folder.

    >>> to_build_spec("smollm2-135m-instruct"), to_build_spec("/models/llama/config.json")
    ('smollm2-135m-instruct', '/models/llama')
    >>> to_build_spec("./config.json"), to_build_spec("model.gguf")
    ('./', 'model.gguf')
    """
    if is_name(spec):
        return spec
    path = str(Path(spec).parent) if Path(spec).name == "config.json" else spec
    if "/" in path or path.endswith(".gguf"):
        return path
    return "./" if path == "." else f"./{path}"  # a bare word would be a pinned name


def write_tokenizer_of(spec: str, home: Path, folder: Path) -> TokenIds:
    """Write a model's tokenizer as an engine would have it, and return its special ids.

    Raises:
        CheckpointError: Its files are damaged.
        ConfigError: There is a config.json alone, and no tokenizer.
    """
    path = find_model(spec, home)
    if path.suffix == ".gguf":
        from trtb.build.checkpoints import tokenizer
        from trtb.build.checkpoints.gguf_checkpoint import read_gguf

        found = read_gguf(path)
        tokenizer.write_tokenizer(found, folder)
        return found.tokens
    if not path.is_dir():
        raise ConfigError(
            f"model: {spec!r}, a config.json alone; expected a folder with a tokenizer, to count tokens",
            "with --input name the model's folder, a pinned model or an --engine; for a config.json alone "
            "leave out --input and give --num-requests, --prompt-tokens and --output-tokens",
        )
    from trtb.build.checkpoints import hf_checkpoint

    checkpoint = hf_checkpoint.read_hf(path)
    hf_checkpoint.write_tokenizer(checkpoint, folder)
    return checkpoint.tokens


def is_name(spec: str) -> bool:
    """Return whether `spec` is the name of a pinned model, rather than a path."""
    return not ("/" in spec or spec.endswith((".gguf", ".json")) or Path(spec).is_dir())


def _name_of(path: Path) -> str:
    """Return what the model would be pinned as; not what a link of a hub's cache is called."""
    return checkpoint.name_of(path.parent if path.name == "config.json" else path)


def _sizes_of_gguf(name: str, path: Path) -> Sizes:
    from trtb.build.checkpoints.gguf_checkpoint import read_gguf

    found = read_gguf(path)
    shapes = {tensor.name: tensor.shape for tensor in found.tensors}
    gate = shapes.get("blk.0.ffn_gate.weight")
    if gate is None:
        raise CheckpointUnsupportedError(
            f"{path}: no blk.0.ffn_gate.weight; expected a decoder with a gated MLP",
            "choose a model of the architectures llama, qwen2 or qwen3",
        )
    return Sizes(name, found.model, gate[1], found.num_parameters, "output.weight" not in shapes)
