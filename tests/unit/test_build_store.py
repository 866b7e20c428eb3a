"""The engine store: versions, defaults, names and ids, and what a kill leaves."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from trtb.build import files
from trtb.build.errors import (
    ConfigError,
    EngineCorruptError,
    EngineNotFoundError,
    StoreError,
    StoreLockedError,
)
from trtb.build.manifest import CheckpointPin, EngineLimits, EngineManifest, ModelShape, TokenIds
from trtb.build.store import EngineStore, StoredEngine


def make_manifest(name: str, content: str) -> EngineManifest:
    return EngineManifest(
        engine_id=files.sha256_bytes(f"{name}/{content}".encode()),
        name=name,
        version=0,
        backend="openvino",
        quant="int8_wo",
        checkpoint=CheckpointPin(
            name="tiny",
            revision="0" * 12,
            format="gguf",
            source="file",
            files=[],
            total_bytes=0,
            pinned_at="",
        ),
        model=ModelShape(
            architecture="llama",
            num_layers=1,
            num_heads=1,
            num_kv_heads=1,
            head_dim=1,
            hidden_size=1,
            vocab_size=1,
            max_position_embeddings=1,
        ),
        tokens=TokenIds(bos=None, pad=0, eos=[0]),
        limits=EngineLimits(
            max_seq_len=1, max_batch_size=1, max_num_tokens=1, tokens_per_block=1, kv_bytes_per_token=1
        ),
        build_config={},
        compute_capability="cpu",
        toolchain={},
        trtb_version="0",
        quality=None,
        files=[],
        built_at="2026-01-01T00:00:00+00:00",
        build_duration_s=0.0,
    )


def commit(store: EngineStore, name: str, content: str) -> StoredEngine:
    with store.stage() as staged:
        (staged / "model.bin").write_text(content)
        (staged / "tokenizer").mkdir()
        (staged / "tokenizer" / "tokenizer.json").write_text("{}")
        return store.commit(staged, make_manifest(name, content))


@pytest.fixture
def store(tmp_path: Path) -> EngineStore:
    return EngineStore(tmp_path)


def test_versions_count_up_and_the_first_is_the_default(store: EngineStore) -> None:
    found = [commit(store, "a", content).manifest.reference for content in "xyz"]
    assert found == ["a@1", "a@2", "a@3"]
    assert store.resolve("a").manifest.version == 1
    assert store.resolve("a@3").path.joinpath("model.bin").read_text() == "z"
    assert [engine.manifest.reference for engine in store.list("a")] == found


def test_an_engine_is_read_only_and_verifies(store: EngineStore) -> None:
    engine = commit(store, "a", "x")
    store.verify(engine)
    modes = {path.name: path.stat().st_mode & 0o777 for path in [engine.path, *engine.path.rglob("*")]}
    assert modes == {
        "1": 0o555,
        "tokenizer": 0o555,
        "model.bin": 0o444,
        "tokenizer.json": 0o444,
        "manifest.json": 0o444,
    }


def test_the_repository_that_triton_runs_is_hashed_too(store: EngineStore) -> None:
    with store.stage() as staged:
        model = staged / "repository" / "tensorrt_llm" / "1" / "model.py"
        model.parent.mkdir(parents=True)
        model.write_text("pass")
        engine = store.commit(staged, make_manifest("a", "x"))
    assert [entry.path for entry in engine.manifest.files] == ["repository/tensorrt_llm/1/model.py"]


def test_a_changed_or_missing_file_is_named(store: EngineStore) -> None:
    engine = commit(store, "a", "x")
    (engine.path / "model.bin").chmod(0o644)
    (engine.path / "model.bin").write_text("y")
    (engine.path / "tokenizer").chmod(0o755)
    (engine.path / "tokenizer" / "tokenizer.json").unlink()
    with pytest.raises(EngineCorruptError) as caught:
        store.verify(engine)
    assert "model.bin: content differs" in caught.value.message
    assert "tokenizer/tokenizer.json: missing" in caught.value.message


def test_ids_resolve_by_unique_prefix(store: EngineStore) -> None:
    first, second = commit(store, "a", "x"), commit(store, "b", "x")
    for engine in (first, second):
        engine_id = engine.manifest.engine_id
        assert store.resolve(engine_id).path == engine.path
        assert store.resolve(engine_id[:12]).path == engine.path
        found = store.find(engine_id)
        assert found is not None
        assert found.path == engine.path
        with pytest.raises(EngineNotFoundError):
            store.resolve(engine_id[:11])
    assert store.find("0" * 64) is None


def test_the_same_engine_is_stored_once(store: EngineStore) -> None:
    assert commit(store, "a", "x").path == commit(store, "a", "x").path
    assert len(store.list()) == 1


def test_no_name_means_the_last_promoted(store: EngineStore) -> None:
    for reference in (None, "a"):
        with pytest.raises(EngineNotFoundError, match="no engine yet") as caught:
            store.resolve(reference)
        assert caught.value.hint == "trtb build --model smollm2-135m-instruct"
    commit(store, "a", "x")
    assert store.resolve(None).manifest.reference == "a@1"
    commit(store, "b", "x")
    commit(store, "a", "y")  # a second version is no promotion
    assert store.resolve(None).manifest.reference == "b@1"
    store.promote("a@2")
    assert store.resolve(None).manifest.reference == "a@2"


def test_promotions_are_rolled_back_one_by_one(store: EngineStore) -> None:
    for content in "xyz":
        commit(store, "a", content)
    store.promote("a@2")
    store.promote("a@3")
    store.promote("a@3")
    assert store.rollback("a").manifest.version == 2
    assert store.rollback("a").manifest.version == 1
    with pytest.raises(StoreError, match="no earlier default"):
        store.rollback("a")


def test_removing_the_default_needs_force_unless_it_is_the_only_version(store: EngineStore) -> None:
    for content in "xyz":
        commit(store, "a", content)
    store.promote("a@2")
    with pytest.raises(StoreError, match=r"a@2: the default of 3 versions"):
        store.remove("a@2")
    store.remove("a@2", force=True)
    assert store.default_version("a") == 1
    store.remove("a@1", force=True)
    assert store.default_version("a") == 3
    store.remove("a")
    assert store.list() == []
    # the number of a removed engine is never given again
    assert commit(store, "a", "new").manifest.reference == "a@4"
    assert store.resolve("a").manifest.version == 4


def test_removing_one_leaves_the_others(store: EngineStore) -> None:
    commit(store, "a", "x")
    kept = commit(store, "b", "x")
    commit(store, "a", "y")
    store.remove("a@2")
    assert [engine.manifest.reference for engine in store.list()] == ["a@1", "b@1"]
    store.verify(kept)


def test_an_engine_with_a_damaged_manifest_can_be_removed(store: EngineStore) -> None:
    engine = commit(store, "a", "x")
    (engine.path / "manifest.json").chmod(0o644)
    (engine.path / "manifest.json").write_text("{")
    with pytest.raises(StoreError, match=r"manifest\.json"):
        store.resolve("a")
    store.remove("a@1")
    assert store.list() == []


@pytest.mark.parametrize("reference", ["b", "a@2", "a@x", "../a", "a@../1", "", "f" * 12])
def test_an_unknown_reference_lists_what_there_is(store: EngineStore, reference: str) -> None:
    commit(store, "a", "x")
    with pytest.raises(EngineNotFoundError, match=r"a"):
        store.resolve(reference)
    with pytest.raises(EngineNotFoundError):
        store.remove(reference)


@pytest.mark.parametrize("name", ["../evil", ".hidden", "a/b", "", "a@1"])
def test_a_name_that_is_not_one_path_component_is_refused(store: EngineStore, name: str) -> None:
    with store.stage() as staged, pytest.raises(ConfigError, match="engine name"):
        store.commit(staged, make_manifest(name, "x"))


def test_a_held_lock_gives_an_error_and_not_a_hang(tmp_path: Path) -> None:
    ready, done = threading.Event(), threading.Event()

    def hold() -> None:
        with files.lock(tmp_path / "engines" / ".lock", timeout_s=5):
            ready.set()
            done.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert ready.wait(30)
        with pytest.raises(StoreLockedError), EngineStore(tmp_path, lock_timeout_s=0.05).stage():
            pass
    finally:
        done.set()
        holder.join()


def test_a_failed_build_leaves_nothing_in_staging(store: EngineStore) -> None:
    with pytest.raises(RuntimeError), store.stage() as staged:
        (staged / "half").write_text("x")
        raise RuntimeError
    assert list((store.root / ".staging").iterdir()) == []
    assert store.list() == []


def test_the_staging_of_a_living_build_is_left_alone(store: EngineStore) -> None:
    with store.stage() as first:
        (first / "half").write_text("x")
        with store.stage():
            pass
        assert (first / "half").exists()


def test_a_kill_between_rename_and_default_leaves_a_usable_engine(store: EngineStore) -> None:
    commit(store, "a", "x")
    (store.root / "a" / "default.json").unlink()
    assert store.resolve("a").manifest.version == 1
    assert commit(store, "a", "y").manifest.version == 2
    assert store.resolve("a").manifest.version == 1


CHILD = """
import importlib.util, itertools, os, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("store_tests", sys.argv[1])
tests = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tests)
store = tests.EngineStore(Path(sys.argv[2]))
for number in itertools.count():
    tests.commit(store, "a", f"{os.getpid()}-{number}")
    print(number, flush=True)
"""


def test_kill_minus_9_at_any_moment_leaves_only_whole_engines(store: EngineStore, tmp_path: Path) -> None:
    rng = random.Random(7)
    known: set[int] = set()
    for _ in range(6):
        command = [sys.executable, "-c", CHILD, __file__, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as child:
            assert child.stdout is not None
            for _ in range(rng.randint(1, 6)):
                child.stdout.readline()
            os.kill(child.pid, signal.SIGKILL)
        for engine in store.list():
            store.verify(engine)
        versions = {engine.manifest.version for engine in store.list("a")}
        assert versions >= known
        known = versions
        assert store.resolve("a").manifest.version == 1
        with store.stage() as staged:  # the lock died with its holder, and its staging is swept
            assert {path.stem for path in (store.root / ".staging").iterdir()} == {staged.name}
    assert known == set(range(1, len(known) + 1))
