"""`trtb cache warm` and `trtb cache verify`: the engine's own cache, of the KV blocks of prompts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtb.tools.console import JsonFlag, command, put, put_json, put_table, say
from trtb.tools.validate import EngineOption

if TYPE_CHECKING:
    from trtb.build.store import StoredEngine
    from trtb.runner.deploy import Agreement
    from trtb.runner.reuse_check import ReuseFindings
    from trtb.runner.warming import Warmed, WarmPlan

EXIT_NO_REUSE = 1
EXIT_CANNOT_TELL = 9
DEFAULT_TOP = 64


@command
def warm(
    input_path: Annotated[Path, typer.Argument(help="The JSONL file of requests that are to come.")],
    endpoint: Annotated[str, typer.Option(help="host:port of the running server.")],
    engine: EngineOption = None,
    top: Annotated[int, typer.Option(min=1, help="Most prefixes to compute.")] = DEFAULT_TOP,
    as_json: JsonFlag = False,
) -> None:
    """Compute a file's most shared prompt prefixes once, on a running server.

    Example: trtb cache warm input.jsonl --endpoint 127.0.0.1:8001
    """
    import asyncio
    import tempfile

    from trtb.runner.engine_server import engine_server
    from trtb.runner.options import RunOptions
    from trtb.runner.warming import check_requests, plan_warm_up, warm_up

    stored = _stored(engine, endpoint)
    options = RunOptions(
        input_path, input_path, stored.path, stored.manifest, endpoints=(endpoint,), model_aliases=("*",)
    )
    check_requests(options)

    async def work(folder: Path) -> tuple[WarmPlan, Warmed, Agreement]:
        async with engine_server(stored.path, stored.manifest, endpoint, folder, say) as (server, agreed):
            plan = plan_warm_up(options, agreed.num_kv_blocks, top, folder)
            return plan, await warm_up(server, agreed, stored.manifest, plan), agreed

    with tempfile.TemporaryDirectory(prefix="trtb-warm-") as folder:
        plan, warmed, agreed = asyncio.run(work(Path(folder)))
    width = stored.manifest.limits.tokens_per_block
    stays = _how_long_it_stays(stored.manifest.backend, agreed)
    if as_json:
        put_json(
            {
                "schema_version": 1,
                "endpoint": endpoint,
                "engine": stored.manifest.reference,
                "num_requests": plan.num_requests,
                "num_refused": plan.num_refused,
                "num_prefixes": plan.num_prefixes,
                "num_warmed": len(plan.prefixes),
                "num_blocks": plan.num_blocks,
                "num_tokens": plan.num_blocks * width,
                "num_kv_blocks": agreed.num_kv_blocks,
                "reused_blocks": warmed.reused_blocks,
                "duration_s": round(warmed.duration_s, 3),
                "stays": stays,
                "prefixes": [
                    {"tokens": prefix.num_blocks * width, "requests": prefix.num_lines}
                    for prefix in plan.prefixes
                ],
            }
        )
        return
    _show_warmed(plan, warmed, agreed, width)
    if plan.prefixes:
        say(f"warning: {stays}")


def _show_warmed(plan: WarmPlan, warmed: Warmed, agreed: Agreement, width: int) -> None:
    from trtb.runner.wording import counted

    prefixes = counted(plan.num_prefixes, "shared prefix", "shared prefixes")
    put(f"{counted(plan.num_requests, 'request')} with {prefixes}; {len(plan.prefixes)} computed")
    if plan.num_refused:
        put(f"{counted(plan.num_refused, 'line')} cannot be sent; trtb validate tells why")
    pool = "" if agreed.num_kv_blocks is None else f" of {agreed.num_kv_blocks}"
    known = (
        "" if warmed.reused_blocks is None else f", {warmed.reused_blocks} of which the engine had already"
    )
    put(
        f"{plan.num_blocks}{pool} KV blocks, {plan.num_blocks * width} tokens{known}, "
        f"in {warmed.duration_s:.1f} s"
    )


def _how_long_it_stays(backend: str, agreed: Agreement) -> str:
    """Return what becomes of computed prefixes that nobody uses yet."""
    if not agreed.is_reusing:
        return "the server's KV reuse is off (enable_kv_cache_reuse): nothing of this is kept"
    if agreed.can_retain:
        return (
            "the engine keeps these blocks before others, by their priority; once its pool is full of blocks "
            "of the same priority or in use, they go, the least recently used first"
        )
    first = "nobody in flight holds these blocks: " if backend == "openvino" else ""
    return (
        f"{first}the engine gives them up, the least recently used first, as soon as other requests need "
        "their room; send the file soon, or let trtb run lead its prefixes itself (--order prefix)"
    )


@command
def verify(
    engine: EngineOption = None,
    endpoint: Annotated[
        str | None, typer.Option(help="host:port of a running, idle server; default: start one.")
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Measure whether an engine reuses the KV cache of known prompts; 0: it does, 1: not, 9: cannot tell.

    Example: trtb cache verify --endpoint 127.0.0.1:8001
    """
    import asyncio
    import tempfile

    from trtb.runner.engine_server import engine_server
    from trtb.runner.reuse_check import check_reuse

    stored = _stored(engine, endpoint)
    manifest = stored.manifest

    async def work(folder: Path) -> tuple[ReuseFindings, Agreement]:
        async with engine_server(stored.path, manifest, endpoint, folder, say) as (server, agreed):
            return await check_reuse(server, manifest, agreed.num_kv_blocks), agreed

    with tempfile.TemporaryDirectory(prefix="trtb-verify-") as folder:
        found, agreed = asyncio.run(work(Path(folder)))
    advice = _advice(found, manifest.backend, agreed)
    if as_json:
        put_json(
            {
                "schema_version": 1,
                "engine": manifest.reference,
                "endpoint": endpoint,
                "verdict": found.verdict,
                "advice": advice,
                "num_rounds": found.num_rounds,
                "prompt_tokens": found.prompt_tokens,
                "cases": [_case_figures(case) for case in found.cases],
            }
        )
    else:
        _show_reuse(found, manifest.reference, advice)
    return {"works": 0, "does not work": EXIT_NO_REUSE, "cannot tell": EXIT_CANNOT_TELL}[found.verdict]


def _case_figures(case: Any) -> dict[str, Any]:
    return {
        "what": case.name,
        "verdict": case.verdict,
        "seen_by": case.method,
        "new_ms": round(case.new_ms, 3),
        "known_ms": round(case.known_ms, 3),
        "ratio": round(case.ratio, 4),
        "reused_blocks": case.reused_blocks,
        "expected_blocks": case.num_blocks,
    }


def _show_reuse(found: ReuseFindings, reference: str, advice: str) -> None:
    put(
        f"{reference}: KV reuse {found.verdict} "
        f"({found.num_rounds} rounds, prompts of {found.prompt_tokens} tokens, times to the first token)"
    )
    rows = [
        [
            case.name,
            case.verdict,
            f"{case.new_ms:.1f} ms",
            f"{case.known_ms:.1f} ms",
            f"{case.ratio:.2f}",
            "not counted" if case.reused_blocks is None else f"{case.reused_blocks} of {case.num_blocks}",
            case.method,
        ]
        for case in found.cases
    ]
    put_table(["again", "is", "new prompt", "known prompt", "ratio", "blocks reused", "seen by"], rows)
    if advice:
        put(advice)


def _advice(found: ReuseFindings, backend: str, agreed: Agreement) -> str:
    """Return what to change where reuse does not work, or was not seen."""
    if found.verdict == "works":
        return ""
    if not agreed.is_reusing:
        return "KV reuse is off on this server; serve with enable_kv_cache_reuse=true (--trtllm-parameter)"
    if found.verdict == "cannot tell":
        return (
            "the times contradict each other: let nothing else run on this server and machine, and try again"
        )
    if backend == "openvino":
        return (
            "the pool may be too small to keep a prompt, or others use it meanwhile; serve with more "
            "--num-kv-blocks"
        )
    return (
        "build with use_paged_context_fmha and serve with enable_kv_cache_reuse=true; an FP8 KV cache needs "
        "FP8 weights for it; a sliding attention window (max_attention_window_size) and a pool that is too "
        "small (kv_cache_free_gpu_mem_fraction) give blocks up early"
    )


def _stored(engine: str | None, endpoint: str | None) -> StoredEngine:
    from trtb.build.files import trtb_home
    from trtb.build.store import EngineStore
    from trtb.tools.run_options import check_endpoint

    if endpoint is not None:
        check_endpoint(endpoint)
    return EngineStore(trtb_home()).resolve(engine)
