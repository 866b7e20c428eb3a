"""Read and write config.pbtxt through Triton's own protobuf, so that what is written is what Triton reads.

tritonclient ships the compiled ModelConfig message; it is imported on first use, since it takes 0.3 s.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtb.build import files
from trtb.build.errors import ConfigError
from trtb.model_repo.contract import TensorSpec


def new_config(name: str, backend: str, max_batch_size: int) -> Any:
    """Return a fresh ModelConfig message."""
    from tritonclient.grpc import model_config_pb2

    return model_config_pb2.ModelConfig(name=name, backend=backend, max_batch_size=max_batch_size)


def add_tensor(field: Any, spec: TensorSpec, *, is_input: bool) -> None:
    """Append a tensor of the contract to a ModelConfig's `input` or `output`."""
    from tritonclient.grpc import model_config_pb2

    tensor = field.add(name=spec.name, dims=spec.dims)
    tensor.data_type = model_config_pb2.DataType.Value(f"TYPE_{spec.data_type}")
    if not is_input:
        return
    tensor.optional = spec.optional
    tensor.allow_ragged_batch = spec.ragged
    if spec.scalar:
        tensor.reshape.SetInParent()  # reshape { shape: [ ] }: present and empty


def declare(config: Any, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    """Declare a decoupled model's tensors: it may answer a request any number of times."""
    config.model_transaction_policy.decoupled = True
    for spec in inputs:
        add_tensor(config.input, spec, is_input=True)
    for spec in outputs:
        add_tensor(config.output, spec, is_input=False)


def add_cpu_instances(config: Any, count: int) -> None:
    """Give a model its instances; what they compute on is the backend's business, not Triton's."""
    group = config.instance_group.add(count=count)
    group.kind = group.KIND_CPU


def set_parameters(config: Any, parameters: dict[str, str]) -> None:
    """Set string parameters of a ModelConfig."""
    for key, value in parameters.items():
        config.parameters[key].string_value = value


def write(path: Path, config: Any) -> None:
    """Write a ModelConfig as text; it is durable when this returns."""
    from google.protobuf import text_format

    files.write_atomic(path, text_format.MessageToString(config).encode())


def read(path: Path) -> Any:
    """Parse a config.pbtxt.

    Raises:
        ConfigError: The file is missing, is not a ModelConfig, or holds an unfilled template variable.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as exc:
        raise ConfigError(f"{path}: not found; expected a Triton model configuration") from exc
    if "${" in text:
        raise ConfigError(f"{path}: holds an unfilled template variable ${{...}}; expected plain values")
    return parse(text, path)


def parse(text: str, path: Path) -> Any:
    """Parse the text of a config.pbtxt; `path` is what an error names.

    Raises:
        ConfigError: It is not a ModelConfig.
    """
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as exc:
        raise ConfigError(f"{path}: {exc}; expected a Triton ModelConfig in text form") from exc
