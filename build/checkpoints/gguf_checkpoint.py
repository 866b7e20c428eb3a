"""GGUF checkpoints: what a file holds, and the rewrite that the engine can read without loss.

OpenVINO GenAI reads GGUF itself, but maps Q4_1 to four bits with an integer zero point and loses a
quarter of the perplexity by it. So no quantised file is handed over as it is: every matrix is
dequantised and written again as Q8_0 or F16, the two types that the reader takes exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trtb.build.errors import CheckpointError, CheckpointUnsupportedError
from trtb.build.manifest import ModelShape, TokenIds

# What the GGUF reader of openvino-genai 2026.4 builds a graph for; anything else it refuses by itself.
READABLE_ARCHITECTURES = ("llama", "qwen2", "qwen3")

Q8_0_BLOCK = 32

CONTROL_TOKEN, USER_DEFINED_TOKEN = 3, 4

# Control tokens that end a generation wherever a vocabulary has them, whatever eos is set to.
END_OF_GENERATION = ("<|endoftext|>", "<|im_end|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>")

GgufType = Literal["Q8_0", "F16"]
_FILE_TYPES: dict[GgufType, int] = {"Q8_0": 7, "F16": 1}  # llama.cpp's general.file_type
_CHUNK_VALUES = 1 << 24  # dequantised at a time: 64 MiB of float32


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """One tensor's name, shape (rows last in memory first, as GGUF has it) and type."""

    name: str
    shape: tuple[int, ...]
    type_name: str


@dataclass(frozen=True, slots=True)
class GgufCheckpoint:
    """The facts of one GGUF file; `metadata` holds every key-value pair of it."""

    path: Path
    model: ModelShape
    tokens: TokenIds
    metadata: dict[str, Any]
    tensors: tuple[TensorFacts, ...]
    reader: Any = field(repr=False, compare=False)  # gguf's, with the file mapped

    @property
    def num_parameters(self) -> int:
        """Return the number of weights in all tensors."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    @property
    def chat_template(self) -> str | None:
        """Return the chat template, as Jinja."""
        template = self.metadata.get("tokenizer.chat_template")
        return template if isinstance(template, str) else None


def read_gguf(path: Path) -> GgufCheckpoint:
    """Read what a GGUF file holds; the tensors stay on disk.

    Raises:
        CheckpointError: The file is not GGUF, is truncated, or lacks a key that a decoder needs.
        CheckpointUnsupportedError: It is one of several shards.
    """
    reader = _open(path)
    try:
        metadata = {key: field.contents() for key, field in reader.fields.items()}
    except (ValueError, IndexError, UnicodeDecodeError) as exc:
        raise CheckpointError(f"{path}: damaged metadata ({exc}); expected a whole GGUF file") from exc
    if metadata.get("split.count", 0) > 1:
        raise CheckpointUnsupportedError(
            f"{path}: one of {metadata['split.count']} shards; expected a single GGUF file",
            "merge the shards with llama.cpp's gguf-split --merge",
        )
    tensors = tuple(
        TensorFacts(tensor.name, tuple(int(size) for size in tensor.shape), tensor.tensor_type.name)
        for tensor in reader.tensors
    )
    embedding = next((tensor for tensor in tensors if tensor.name == "token_embd.weight"), None)
    if embedding is None:
        raise CheckpointError(f"{path}: no tensor token_embd.weight; expected the weights of a decoder")
    return GgufCheckpoint(
        path=path,
        model=_read_shape(path, metadata, vocab_size=embedding.shape[-1]),
        tokens=_read_tokens(path, metadata),
        metadata=metadata,
        tensors=tensors,
        reader=reader,
    )


def check_readable(checkpoint: GgufCheckpoint) -> None:
    """Refuse what OpenVINO GenAI cannot read, or would read wrongly.

    Raises:
        CheckpointUnsupportedError: Its architecture, RoPE scaling, a tensor's type or width.
    """
    path, metadata = checkpoint.path, checkpoint.metadata
    architecture = checkpoint.model.architecture
    if architecture not in READABLE_ARCHITECTURES:
        raise CheckpointUnsupportedError(
            f"{path}: architecture {architecture!r}; "
            f"openvino-genai reads {', '.join(READABLE_ARCHITECTURES)} from GGUF",
            "choose another checkpoint, or a Hugging Face folder of this one",
        )
    scaling = metadata.get(f"{architecture}.rope.scaling.type", "none")
    if scaling != "none" or any(tensor.name.startswith("rope_freqs") for tensor in checkpoint.tensors):
        raise CheckpointUnsupportedError(
            f"{path}: scaled RoPE ({scaling}); openvino-genai's GGUF reader leaves the scaling out, "
            "and the answers would be wrong",
            "choose a checkpoint without RoPE scaling, or a Hugging Face folder of this one",
        )
    _check_tensors(checkpoint)


def rewrite(
    source: GgufCheckpoint,
    target: Path,
    gguf_type: GgufType,
    progress: Callable[[str], None] | None = None,
) -> None:
    """Write `source` again with every matrix as `gguf_type`, every vector as F32, all metadata kept.

    Memory holds one tensor of the new type and a part of it as float32, never the model.
    """
    import gguf
    import numpy as np

    reader = source.reader
    quant = gguf.GGMLQuantizationType[gguf_type]
    vector = gguf.GGMLQuantizationType.F32
    writer = gguf.GGUFWriter(target, source.model.architecture)
    _copy_metadata(source, writer)
    writer.add_file_type(_FILE_TYPES[gguf_type])
    for tensor in reader.tensors:
        shape = [int(size) for size in reversed(tensor.shape)]
        kind = quant if len(shape) > 1 else vector
        num_bytes = math.prod(gguf.quant_shape_to_byte_shape(shape, kind))
        writer.add_tensor_info(tensor.name, shape, np.dtype(np.float32), num_bytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for number, tensor in enumerate(reader.tensors, 1):
        kind = quant if len(tensor.shape) > 1 else vector
        writer.write_tensor_data(_convert(tensor, kind))
        if progress:
            progress(f"tensor {number} of {len(reader.tensors)}")
    writer.close()


def _open(path: Path) -> Any:
    import gguf

    if not path.is_file():
        raise CheckpointError(f"{path}: not found; expected a GGUF file")
    try:
        with path.open("rb") as file:
            magic = file.read(4)
        if magic != b"GGUF":
            raise CheckpointError(f"{path}: begins with {magic!r}; expected a GGUF file")
        return gguf.GGUFReader(path)
    except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError, MemoryError) as exc:
        # the reader maps the file and slices past its end when it is cut off
        raise CheckpointError(
            f"{path}: damaged or truncated ({path.stat().st_size} bytes); expected a whole GGUF file",
            "fetch the file again and compare its sha256 with the publisher's",
        ) from exc


def _need_int(path: Path, metadata: dict[str, Any], key: str) -> int:
    value = metadata.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise CheckpointError(f"{path}: {key}: {value!r}; expected a whole number")
    return value


def _read_shape(path: Path, metadata: dict[str, Any], vocab_size: int) -> ModelShape:
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise CheckpointError(f"{path}: general.architecture: {architecture!r}; expected a name")

    def need(key: str) -> int:
        return _need_int(path, metadata, f"{architecture}.{key}")

    num_heads, hidden_size = need("attention.head_count"), need("embedding_length")
    if num_heads == 0:
        raise CheckpointError(f"{path}: {architecture}.attention.head_count: 0; expected at least 1")
    has_kv = f"{architecture}.attention.head_count_kv" in metadata
    has_length = f"{architecture}.attention.key_length" in metadata
    return ModelShape(
        architecture=architecture,
        num_layers=need("block_count"),
        num_heads=num_heads,
        num_kv_heads=need("attention.head_count_kv") if has_kv else num_heads,
        head_dim=need("attention.key_length") if has_length else hidden_size // num_heads,
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        max_position_embeddings=need("context_length"),
    )


def _read_tokens(path: Path, metadata: dict[str, Any]) -> TokenIds:
    vocabulary = metadata.get("tokenizer.ggml.tokens")
    types = metadata.get("tokenizer.ggml.token_type")
    if not isinstance(vocabulary, list) or not isinstance(types, list) or len(vocabulary) != len(types):
        raise CheckpointError(
            f"{path}: no vocabulary with token types; expected tokenizer.ggml.tokens and .token_type"
        )

    def optional(key: str) -> int | None:
        if f"tokenizer.ggml.{key}" not in metadata:
            return None
        token_id = _need_int(path, metadata, f"tokenizer.ggml.{key}")
        if token_id >= len(vocabulary):
            raise CheckpointError(
                f"{path}: tokenizer.ggml.{key}: {token_id}; expected an id below {len(vocabulary)}"
            )
        return token_id

    eos = _need_int(path, metadata, "tokenizer.ggml.eos_token_id")
    ends = [optional("eos_token_id"), optional("eot_token_id"), optional("eom_token_id")]
    ids = {token: index for index, token in enumerate(vocabulary) if types[index] == CONTROL_TOKEN}
    ends += [ids.get(token) for token in END_OF_GENERATION]
    pad = optional("padding_token_id")
    return TokenIds(
        bos=optional("bos_token_id"),
        pad=eos if pad is None else pad,
        eos=list(dict.fromkeys(token_id for token_id in ends if token_id is not None)),
    )


def _check_tensors(checkpoint: GgufCheckpoint) -> None:
    path = checkpoint.path
    for tensor in checkpoint.tensors:
        if len(tensor.shape) > 2:
            raise CheckpointUnsupportedError(
                f"{path}: {tensor.name}: {len(tensor.shape)} dimensions (a mixture of experts); "
                "openvino-genai's GGUF reader knows dense models only",
                "use a Hugging Face folder of this checkpoint",
            )
        if len(tensor.shape) > 1 and tensor.shape[0] % Q8_0_BLOCK:
            raise CheckpointUnsupportedError(
                f"{path}: {tensor.name}: rows of {tensor.shape[0]}; expected a multiple of {Q8_0_BLOCK}"
            )
    for type_name in sorted({tensor.type_name for tensor in checkpoint.tensors}):
        if not _can_dequantise(type_name):
            named = next(tensor.name for tensor in checkpoint.tensors if tensor.type_name == type_name)
            raise CheckpointUnsupportedError(
                f"{path}: {named}: type {type_name}; expected one that the gguf package can dequantise",
                "fetch the checkpoint in F16, BF16, Q8_0 or a K-quant",
            )


def _can_dequantise(type_name: str) -> bool:
    import gguf
    import numpy as np

    kind = gguf.GGMLQuantizationType[type_name]
    _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    try:
        gguf.quants.dequantize(np.zeros((1, block_bytes), dtype=np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _copy_metadata(source: GgufCheckpoint, writer: Any) -> None:
    for key, value in source.metadata.items():
        if key.startswith("GGUF.") or key in {"general.architecture", "general.file_type"}:
            continue  # the writer sets these itself
        if key == "general.alignment":
            writer.add_custom_alignment(value)
            continue
        types = source.reader.fields[key].types
        writer.add_key_value(key, value, types[0], types[-1] if len(types) > 1 else None)


def _convert(tensor: Any, kind: Any) -> Any:
    import gguf
    import numpy as np

    rows = tensor.data.reshape(-1, tensor.data.shape[-1])
    step = max(1, _CHUNK_VALUES // int(tensor.shape[0]))
    parts = [
        gguf.quants.quantize(
            np.ascontiguousarray(gguf.quants.dequantize(rows[start : start + step], tensor.tensor_type)), kind
        )
        for start in range(0, len(rows), step)
    ]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
