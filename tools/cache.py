"""`trtb cache`: the answers that are kept between runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtb.tools import cache_kv
from trtb.tools.console import JsonFlag, command, put, put_json, put_table, size

if TYPE_CHECKING:
    from trtb.runner.caching.cache_database import CacheDatabase

NO_BOUND_BYTES = 4 << 40  # SQLite's own is 4.4 TB

app = typer.Typer(
    no_args_is_help=True, help="Answers that are kept between runs, and the engine's own cache."
)
app.command("warm")(cache_kv.warm)
app.command("verify")(cache_kv.verify)


@app.command("stats")
@command
def stats(as_json: JsonFlag = False) -> None:
    """Print what the result cache holds, by engine.

    Example: trtb cache stats
    """
    from trtb.runner.caching.result_cache import cache_folder
    from trtb.runner.wording import counted

    if (database := _open_existing()) is None:
        figures = {
            "schema_version": 1,
            "path": cache_folder(),
            "size_bytes": 0,
            "num_entries": 0,
            "engines": [],
        }
        put_json(figures) if as_json else put(f"{cache_folder()}: no result cache")
        return
    try:
        counts = database.count()
        stored_s, used_s = database.oldest()
        size_bytes, path = database.file.size_bytes, database.file.path
    finally:
        database.close()
    names = _engine_names()
    num_entries = sum(count for _, count, _ in counts)
    if as_json:
        engines = [
            {
                "engine_id": engine_id,
                "reference": names.get(engine_id),
                "num_entries": count,
                "value_bytes": total,
            }
            for engine_id, count, total in counts
        ]
        put_json(
            {
                "schema_version": 1,
                "path": path,
                "size_bytes": size_bytes,
                "num_entries": num_entries,
                "oldest_stored_s": stored_s,
                "least_recently_used_s": used_s,
                "engines": engines,
            }
        )
        return
    put(f"{path}: {counted(num_entries, 'answer')}, {size(size_bytes)}")
    rows = [
        [names.get(engine_id, "not in the store"), engine_id[:12], str(count), size(total)]
        for engine_id, count, total in counts
    ]
    put_table(["engine", "id", "answers", "size"], rows)


@app.command("clear")
@command
def clear(
    engine: Annotated[
        str | None, typer.Option(help="Only answers of this engine: NAME, NAME@VERSION, or an engine id.")
    ] = None,
    older_than: Annotated[
        float | None,
        typer.Option(min=0, max=1_000_000, help="Only answers last used longer ago than so many hours."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Remove answers from the result cache, and give the disk back; also beside runs that use it.

    Example: trtb cache clear --older-than 720
    """
    from trtb.runner.caching.result_cache import remove_damaged
    from trtb.runner.wording import counted

    engine_id = None if engine is None else _engine_id_of(engine)
    used_before_s = None if older_than is None else int(time.time() - older_than * 3600)
    num_removed = size_bytes = 0
    if (database := _open_existing()) is not None:
        try:
            num_removed = database.remove_where(engine_id=engine_id, used_before_s=used_before_s)
            size_bytes = database.file.size_bytes
        finally:
            database.close()
    remove_damaged()
    if as_json:
        put_json({"schema_version": 1, "num_removed": num_removed, "size_bytes": size_bytes})
    else:
        put(f"{counted(num_removed, 'answer')} removed; the cache takes {size(size_bytes)}")


@app.command("export")
@command
def export(
    path: Annotated[Path, typer.Argument(help="The file to write, such as cache.jsonl.gz.")],
    as_json: JsonFlag = False,
) -> None:
    """Write all answers of the result cache to a file: a backup, or for another machine.

    Example: trtb cache export cache.jsonl.gz
    """
    from trtb.build.errors import ConfigError
    from trtb.build.files import check_replaceable
    from trtb.runner.caching.cache_transfer import export_cache
    from trtb.runner.wording import counted

    check_replaceable(path)
    database = _open()
    try:
        num_entries = export_cache(database, path)
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror or exc}; expected a file that can be written") from exc
    finally:
        database.close()
    size_bytes = path.stat().st_size
    if as_json:
        put_json({"schema_version": 1, "path": path, "num_entries": num_entries, "size_bytes": size_bytes})
    else:
        put(f"{path}: {counted(num_entries, 'answer')}, {size(size_bytes)}")


@app.command("import")
@command
def import_file(
    path: Annotated[Path, typer.Argument(help="A file of trtb cache export.")],
    capacity_gb: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=4000,
            help="Disk that the cache may take, in GB; default: 10, or what it takes now.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Merge a file of answers into the result cache; what is there stays, and each answer is verified.

    Example: trtb cache import cache.jsonl.gz
    """
    from dataclasses import asdict

    from trtb.runner.caching.cache_transfer import import_cache

    database = _open(_default_capacity_gb() if capacity_gb is None else capacity_gb)
    try:
        done = import_cache(database, path)
        size_bytes = database.file.size_bytes
    finally:
        database.close()
    if as_json:
        put_json({"schema_version": 1, "path": path, **asdict(done), "size_bytes": size_bytes})
        return
    put(
        f"{path}: {done.num_taken} taken, {done.num_known} known, {done.num_refused} refused"
        + (f", {done.num_not_stored} too large" if done.num_not_stored else "")
        + (f"; {done.num_evicted} had to go" if done.num_evicted else "")
    )


def _open(capacity_gb: float | None = None) -> CacheDatabase:
    """Open the cache, making it where it is not there; without a capacity, nothing has to go."""
    from trtb.runner.caching.cache_database import CacheDatabase
    from trtb.runner.caching.result_cache import GB, cache_folder

    capacity_bytes = NO_BOUND_BYTES if capacity_gb is None else int(capacity_gb * GB)
    return CacheDatabase(cache_folder(), capacity_bytes)


def _default_capacity_gb() -> float:
    """Return the usual capacity, or a larger one that the cache has by now."""
    from trtb.runner.caching.result_cache import GB
    from trtb.runner.options import DEFAULT_CACHE_CAPACITY_GB

    if (database := _open_existing()) is None:
        return DEFAULT_CACHE_CAPACITY_GB
    try:
        return max(DEFAULT_CACHE_CAPACITY_GB, database.file.size_bytes / GB)
    finally:
        database.close()


def _open_existing() -> CacheDatabase | None:
    from trtb.runner.caching.cache_file import FILE_NAME
    from trtb.runner.caching.result_cache import cache_folder

    return _open() if (cache_folder() / FILE_NAME).exists() else None


def _engine_names() -> dict[str, str]:
    from trtb.build.files import trtb_home
    from trtb.build.store import EngineStore

    manifests = [engine.manifest for engine in EngineStore(trtb_home()).list()]
    return {manifest.engine_id: manifest.reference for manifest in manifests}


def _engine_id_of(reference: str) -> str:
    """Return the id that a reference means; an id as it stands, since its engine may be gone."""
    from trtb.build.files import trtb_home
    from trtb.build.store import EngineStore

    if len(reference) == 64 and not set(reference) - set("0123456789abcdef"):
        return reference
    return EngineStore(trtb_home()).resolve(reference).manifest.engine_id
