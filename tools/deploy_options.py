"""Options of a server that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

DeviceIdsOption = Annotated[
    str | None,
    typer.Option(
        help="GPUs, as nvidia-smi counts them; cut into one server for each of the engine's ranks: 0,1;2,3."
    ),
]
LaunchOption = Annotated[
    str,
    typer.Option(help="Where the server runs: embedded (CPU), image (this container), docker, or auto."),
]
StartTimeoutOption = Annotated[
    float | None,
    typer.Option(min=1, help="Seconds to wait for the engine; default: 300, and more for large engines."),
]
TrtllmParameterOption = Annotated[
    list[str] | None,
    typer.Option(
        help="NAME=VALUE: a setting of TensorRT-LLM's server, as in enable_kv_cache_reuse=false; repeatable."
    ),
]
