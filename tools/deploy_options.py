"""Options of a server that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

MAX_GB = 1e6  # of memory: more than a machine has, and few enough bytes for any integer
MAX_SECONDS = 1e8  # three years; a wait of 292 or more is an error of Python's

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
    typer.Option(
        min=1,
        max=MAX_SECONDS,
        help="Seconds to wait for the engine; default: 300, and more for large engines.",
    ),
]
KvCacheDtypeOption = Annotated[
    str,
    typer.Option(help="auto: as the engine computes; int8: 8 bits, which changes answers (CPU engines)."),
]
NumKvBlocksOption = Annotated[
    int | None,
    typer.Option(min=2, help="KV cache of our own server, in blocks; default: a share of the free memory."),
]
KvCacheGbOption = Annotated[
    float | None,
    typer.Option(
        min=0.001, max=MAX_GB, help="The same by its size, in GB: of each GPU; on a CPU counted in f32."
    ),
]
KvHostCacheGbOption = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=MAX_GB,
        help="Host memory for KV blocks that a GPU has no room for, in GB for each rank; GPU engines.",
    ),
]
KvReuseOption = Annotated[
    bool | None,
    typer.Option(
        "--kv-reuse/--no-kv-reuse",
        help="Compute a prefix that prompts share once; default: where the engine can.",
    ),
]
TrtllmParameterOption = Annotated[
    list[str] | None,
    typer.Option(
        help="NAME=VALUE: a setting of TensorRT-LLM's server, as in enable_kv_cache_reuse=false; repeatable."
    ),
]
