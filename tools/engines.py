"""`trtb engines`: the versioned store."""

from __future__ import annotations

from typing import Annotated

import typer

from trtb.tools import render
from trtb.tools.console import JsonFlag, command, put, put_json, put_table, size

app = typer.Typer(no_args_is_help=True, help="The versioned store of engines.")

EngineArgument = Annotated[str, typer.Argument(help="NAME, NAME@VERSION, or an engine id.")]


@app.command("list")
@command
def list_engines(
    name: Annotated[str | None, typer.Argument(help="Only the versions of this name.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """List the engines; the default version of each name is marked.

    Example: trtb engines list
    """
    from trtb.build.files import trtb_home
    from trtb.build.store import EngineStore

    store = EngineStore(trtb_home())
    engines = store.list(name)
    if as_json:
        found = [
            {
                "reference": engine.manifest.reference,
                "engine_id": engine.manifest.engine_id,
                "default": store.default_version(engine.manifest.name) == engine.manifest.version,
                "backend": engine.manifest.backend,
                "quant": engine.manifest.quant,
                "built_at": engine.manifest.built_at,
                "path": engine.path,
            }
            for engine in engines
        ]
        put_json({"schema_version": 1, "engines": found})
        return
    rows = []
    for engine in engines:
        manifest = engine.manifest
        is_default = store.default_version(manifest.name) == manifest.version
        quality = manifest.quality
        ratio = f"{quality.perplexity / quality.base_perplexity:.4f}" if quality else "-"
        rows.append(
            [
                manifest.reference + (" *" if is_default else ""),
                manifest.engine_id[:12],
                manifest.backend,
                manifest.quant,
                size(sum(entry.size_bytes for entry in manifest.files)),
                ratio,
                manifest.built_at[:19],
            ]
        )
    put_table(["engine (* default)", "id", "backend", "quant", "size", "perplexity/base", "built"], rows)


@app.command("show")
@command
def show(engine: EngineArgument, as_json: JsonFlag = False) -> None:
    """Print an engine's manifest.

    Example: trtb engines show smollm2-135m-instruct-int8_wo
    """
    from trtb.build.files import trtb_home
    from trtb.build.store import EngineStore
    from trtb.tools.sweeping.recommended import read_recommendation

    stored = EngineStore(trtb_home()).resolve(engine)
    recommended = read_recommendation(stored.path, stored.manifest)
    if as_json:
        told = {"recommended": recommended.model_dump()} if recommended else {}
        put_json({"path": stored.path, **stored.manifest.model_dump(), **told})
        return
    manifest = stored.manifest
    put(f"{manifest.reference}  {manifest.engine_id}")
    put(f"path        {stored.path}")
    pin = manifest.checkpoint
    put(f"checkpoint  {pin.name} {pin.revision} ({pin.source})")
    put(f"backend     {manifest.backend}, {manifest.compute_capability}, quant {manifest.quant}")
    limits = manifest.limits
    put(
        f"limits      max_seq_len {limits.max_seq_len}, max_batch_size {limits.max_batch_size}, "
        f"max_num_tokens {limits.max_num_tokens}"
    )
    put(f"KV cache    {limits.kv_bytes_per_token} bytes a token, blocks of {limits.tokens_per_block} tokens")
    if quality := manifest.quality:
        put(
            f"quality     perplexity {quality.perplexity:.3f} against {quality.base_perplexity:.3f} of "
            f"{quality.base}; same top choice at {quality.top1_agreement:.1%} of {quality.num_tokens} tokens"
        )
        if quality.greedy_agreement is not None:
            put(f"            greedy answers agree for {quality.greedy_agreement:.1%} of their length")
    if used := manifest.calibration:
        put(
            f"calibration {used.num_samples} samples, {used.num_tokens} tokens of {used.source}, "
            f"seed {used.seed}"
        )
    if manifest.gpu:
        put(
            f"compiled    on {manifest.gpu.name}"
            + (f" in {manifest.container}" if manifest.container else "")
        )
    if recommended:
        put(f"recommended {recommended.describe()}")
    put("toolchain   " + ", ".join(f"{name} {version}" for name, version in manifest.toolchain.items()))
    for step in manifest.steps:
        put(f"step        {step.name}: {step.duration_s:.1f} s" + (", done before" if step.is_reused else ""))
    peak = f", at most {size(manifest.peak_host_bytes)} of memory" if manifest.peak_host_bytes else ""
    put(
        f"built       {manifest.built_at} in {manifest.build_duration_s:.0f} s{peak}, "
        f"trtb {manifest.trtb_version}"
    )


@app.command("verify")
@command
def verify(engine: EngineArgument, as_json: JsonFlag = False) -> None:
    """Hash every file of an engine again.

    Example: trtb engines verify smollm2-135m-instruct-int8_wo
    """
    from trtb.build.files import trtb_home
    from trtb.build.store import EngineStore

    store = EngineStore(trtb_home())
    stored = store.resolve(engine)
    store.verify(stored)
    if as_json:
        put_json({"schema_version": 1, "reference": stored.manifest.reference, "ok": True})
    else:
        put(f"{stored.manifest.reference}: {len(stored.manifest.files)} files, all as built")


@app.command("promote")
@command
def promote(engine: EngineArgument, as_json: JsonFlag = False) -> None:
    """Make a version the default of its name.

    Example: trtb engines promote smollm2-135m-instruct-int8_wo@2
    """
    from trtb.build.files import trtb_home
    from trtb.build.store import EngineStore

    _tell_default(EngineStore(trtb_home()).promote(engine).manifest.reference, as_json)


@app.command("rollback")
@command
def rollback(
    name: Annotated[str, typer.Argument(help="The engine's name.")], as_json: JsonFlag = False
) -> None:
    """Go back to the default of before the last promotion.

    Example: trtb engines rollback smollm2-135m-instruct-int8_wo
    """
    from trtb.build.files import trtb_home
    from trtb.build.store import EngineStore

    _tell_default(EngineStore(trtb_home()).rollback(name).manifest.reference, as_json)


@app.command("remove")
@command
def remove(
    engine: EngineArgument,
    force: Annotated[bool, typer.Option(help="Remove the default of several versions, too.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Remove one version from the store.

    Example: trtb engines remove smollm2-135m-instruct-int8_wo@1
    """
    from trtb.build.files import trtb_home
    from trtb.build.store import EngineStore

    EngineStore(trtb_home()).remove(engine, force=force)
    if as_json:
        put_json({"schema_version": 1, "removed": engine})
    else:
        put(f"{engine}: removed")


@app.command("prune")
@command
def prune(as_json: JsonFlag = False) -> None:
    """Remove the finished steps that failed, stopped or --keep-steps builds left; engines stay.

    Example: trtb engines prune
    """
    from trtb.build.files import trtb_home
    from trtb.build.steps import prune_steps

    freed = prune_steps(trtb_home())
    if as_json:
        put_json({"schema_version": 1, "freed_bytes": freed})
    else:
        put(f"{size(freed)} freed")


def _tell_default(reference: str, as_json: bool) -> None:
    if as_json:
        put_json({"schema_version": 1, "default": reference})
    else:
        put(f"{reference} is the default")


app.command("render")(render.render)
