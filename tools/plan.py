"""`trtb plan`: what an engine takes and can hold, before anything is built."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtb.tools.console import JsonFlag, command, duration, put, put_json, say

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtb.build.planning.findings import Finding
    from trtb.build.planning.plan import Plan
    from trtb.tools.plan_subject import Subject

_MACHINE = "Machine"
_FILE = "The file"
_FIXED = "Fixed, instead of recommended"

ModelOption = Annotated[
    str | None,
    typer.Option("--model", help="A config.json, a model folder, a .gguf file, or a pinned name."),
]
PlanQuantOption = Annotated[str, typer.Option("--quant", help="As for trtb build.")]
PlanBackendOption = Annotated[
    str,
    typer.Option("--backend", help="auto, openvino (CPU) or tensorrt_llm (GPU).", rich_help_panel=_MACHINE),
]
GpuOption = Annotated[
    str | None,
    typer.Option(
        "--gpu", help="A GPU of the catalogue, such as H100, that need not be here.", rich_help_panel=_MACHINE
    ),
]
NumGpusOption = Annotated[
    int,
    typer.Option(
        "--num-gpus", min=1, max=64, help="With --gpu: how many at the most.", rich_help_panel=_MACHINE
    ),
]


@command
def plan(
    model: ModelOption = None,
    quant: PlanQuantOption = "int8_wo",
    engine: Annotated[
        str | None, typer.Option("--engine", help="Plan for an engine that is built, instead of a model.")
    ] = None,
    backend: PlanBackendOption = "auto",
    gpu: GpuOption = None,
    num_gpus: NumGpusOption = 8,
    gpu_hour_cost: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1e9,
            help="Price of one GPU for an hour, in any currency.",
            rich_help_panel=_MACHINE,
        ),
    ] = None,
    margin: Annotated[
        float,
        typer.Option(
            min=0, max=0.9, help="Share kept back from what is estimated.", rich_help_panel=_MACHINE
        ),
    ] = 0.2,
    input_path: Annotated[
        Path | None,
        typer.Option(
            "--input",
            help="JSONL of requests, counted with the model's tokenizer.",
            rich_help_panel=_FILE,
        ),
    ] = None,
    default_max_tokens: Annotated[
        int, typer.Option(min=1, help="Bound of answers whose request names none.", rich_help_panel=_FILE)
    ] = 1024,
    num_requests: Annotated[
        int, typer.Option(min=0, help="Without a file: how many equal requests.", rich_help_panel=_FILE)
    ] = 0,
    prompt_tokens: Annotated[
        int, typer.Option(min=0, help="Without a file: tokens of each prompt.", rich_help_panel=_FILE)
    ] = 0,
    output_tokens: Annotated[
        int, typer.Option(min=0, help="Without a file: tokens of each answer.", rich_help_panel=_FILE)
    ] = 0,
    group_size: Annotated[
        int | None, typer.Option(min=1, help="Group of the quantisation.", rich_help_panel=_FIXED)
    ] = None,
    tp_size: Annotated[
        int | None, typer.Option(min=1, max=64, help="GPUs that share each layer.", rich_help_panel=_FIXED)
    ] = None,
    pp_size: Annotated[
        int, typer.Option(min=1, max=64, help="GPUs that share the layers.", rich_help_panel=_FIXED)
    ] = 1,
    kv_cache_dtype: Annotated[
        str, typer.Option(help="auto, or as for trtb build.", rich_help_panel=_FIXED)
    ] = "auto",
    max_seq_len: Annotated[
        int | None, typer.Option(min=2, help="Prompt and answer together, in tokens.", rich_help_panel=_FIXED)
    ] = None,
    max_batch_size: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Most requests in flight.", rich_help_panel=_FIXED)
    ] = None,
    max_num_tokens: Annotated[
        int | None, typer.Option(min=32, help="Most tokens computed in one step.", rich_help_panel=_FIXED)
    ] = None,
    num_kv_blocks: Annotated[
        int | None, typer.Option(min=2, help="KV cache on a CPU, in blocks.", rich_help_panel=_FIXED)
    ] = None,
    write: Annotated[
        Path | None, typer.Option("--write", help="Write the settings as a job file for trtb run --config.")
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Plan an engine: weights, KV cache, concurrency, settings, time and cost; nothing is built or fetched.

    A config.json is enough, but for --input, which needs a tokenizer. Exit code 4 where it does not fit.

    Example: trtb plan --model smollm2-135m-instruct --quant fp8 --gpu H100 --input batch.jsonl
    """
    from trtb.build.hardware import probe
    from trtb.build.planning.plan import PlanOptions
    from trtb.runner.plan_job import check_is_new, write_job
    from trtb.tools.plan_subject import Subject, Target

    options = PlanOptions(
        group_size=group_size,
        tp_size=tp_size,
        pp_size=pp_size,
        max_seq_len=max_seq_len,
        max_batch_size=max_batch_size,
        max_num_tokens=max_num_tokens,
        kv_cache_dtype=kv_cache_dtype,
        num_kv_blocks=num_kv_blocks,
        margin=margin,
        gpu_hour_cost=gpu_hour_cost,
    )
    if write is not None:
        check_is_new(write)
    subject = Subject.choose(model, engine)
    workload = None
    if input_path is not None:
        workload = subject.read_workload(input_path, default_max_tokens)
    elif num_requests or prompt_tokens or output_tokens:
        from trtb.runner.workload import uniform_workload

        workload = uniform_workload(num_requests, prompt_tokens, output_tokens)
    target = Target.choose(probe(), backend, gpu, num_gpus, subject.stored)
    made = subject.make_plan(options, workload, target, quant)
    others = subject.alternatives(made, options, workload, target)
    if write is not None:
        write_job(
            write,
            made,
            model=subject.pinned_name,
            build_spec=subject.build_spec,
            engine=subject.reference,
            input_path=input_path,
        )
        say_written(write, made, subject, input_path)
    if as_json:
        put_json({"schema_version": 1, **to_json(made), "alternatives": others})
    else:
        show(made, others, subject.build_spec)
    return 0 if made.fits else 4


def say_written(path: Path, made: Plan, subject: Subject, input_path: Path | None) -> None:
    """Say what is to be done with a job file; the planned engine has to be there first."""
    from trtb.runner.plan_job import build_command, run_command

    then = run_command(path, input_path)
    if subject.stored is not None:
        say(f"{path}: written; run it: {then}")
        return
    say(f"{path}: written; it sets the run, not the engine. First build the engine as planned:")
    say(f"  {build_command(made, subject.build_spec)}")
    say(f"then run it, with --engine where the model's default engine is another: {then}")


def to_json(made: Plan) -> dict[str, Any]:
    """Return a plan as `--json` prints it."""
    values = asdict(made)
    values["fits"] = made.fits
    for name in ("num_tokens", "pool_bytes", "needed_bytes"):
        values["memory"][name] = getattr(made.memory, name)
    values["settings"]["world_size"] = made.settings.world_size
    values["findings"] = list(values["findings"])
    return values


def show(made: Plan, others: list[str], build_spec: str) -> None:
    """Print a plan for a person; `build_spec` is what `trtb build --model` takes for the model."""
    from trtb.runner.plan_job import build_command

    settings, memory = made.settings, made.memory
    ranks = settings.world_size
    where = f"this CPU ({made.device})"
    if made.backend == "tensorrt_llm":
        where = f"{ranks} x {made.device}" if memory.total_bytes else "no GPU"
    put(f"{made.model} as {made.quant} on {where}: {'fits' if made.fits else 'does not fit'}")
    each = " on each GPU" if ranks > 1 else ""
    put(f"memory       {gib(memory.total_bytes)} to use{each}")
    put(f"weights      {gib(memory.weight_bytes)}")
    put(f"reserve      {gib(memory.reserve_bytes)} for activations and the runtime, an estimate")
    _show_kv_cache(made)
    longest = "of the longest" if made.workload else f"of {settings.max_seq_len} tokens"
    mean = f"{made.max_concurrency} requests of mean length, " if made.workload else ""
    most = f"at most {settings.max_batch_size} in flight"
    put(f"concurrency  the KV cache holds {mean}{made.min_concurrency} {longest}; {most}")
    put(f"settings     {build_command(made, build_spec)}")
    if settings.host_cache_bytes:
        put(f"host cache   {gib(settings.host_cache_bytes)} of host memory for evicted KV blocks")
    put(f"build        about {gib(made.peak_build_bytes)} of host memory at its peak")
    _show_load(made)
    show_findings(made.findings)
    for other in others:
        put(f"would fit: {other}")


def _show_kv_cache(made: Plan) -> None:
    memory, dtype = made.memory, made.settings.kv_cache_dtype
    put(
        f"KV cache     {gib(memory.pool_bytes)}: {memory.num_blocks} blocks of {memory.tokens_per_block}, "
        f"{memory.num_tokens} tokens; {memory.bytes_per_token} bytes a token in {dtype}"
    )
    if memory.pool_margin:
        put(f"             after a margin of {memory.pool_margin:.0%} of what TensorRT-LLM takes")
    if made.device == "avx512_bf16":
        put("             the most it can be: without --deterministic this CPU keeps bf16, half of the bytes")


def show_findings(findings: Iterable[Finding]) -> None:
    """Print findings, each with what to do."""
    for finding in findings:
        put(f"{finding.severity:8} {finding.code}: {finding.message}")
        put(f"         {finding.hint} [{finding.reference}]")


def gib(num_bytes: float) -> str:
    """Return a size in GiB, as memory is told."""
    from trtb.build.planning.preflight_host import gib as told

    return told(num_bytes)


def _show_load(made: Plan) -> None:
    load, estimate = made.workload, made.estimate
    if load is None:
        return
    put(
        f"file         {load.num_requests} requests, {load.prompt_tokens} prompt tokens, at most "
        f"{load.output_tokens} output tokens, {load.shared_prefix_share:.0%} in shared prefixes"
    )
    if estimate is None:
        put("time         no figure known for this device, size and length; run a part to measure")
        return
    row = estimate.reference
    cost = "" if estimate.cost is None else f", cost {estimate.cost:.2f}"
    put(f"time         about {duration(estimate.duration_s)}{cost}: an estimate, by the nearest figure known")
    put(
        f"             {row.output_tokens_per_s:.0f} output tokens/s: {row.model} as {row.quant}, "
        f"{row.prompt_tokens} tokens in and {row.output_tokens} out ({row.source}; {row.conditions})"
    )
