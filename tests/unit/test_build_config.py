"""Options, schemes, backends, versions and the memory that is left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trtb.build.backends import choose_backend, get_backend
from trtb.build.compatibility import OPENVINO_TOOLCHAIN, installed_versions
from trtb.build.config import make_config, resolve_max_seq_len
from trtb.build.errors import ConfigError
from trtb.build.hardware import available_host_bytes, cgroup_available_bytes
from trtb.build.quality import quality_texts
from trtb.build.quantization import SCHEMES, get_scheme


def test_the_defaults_are_those_documented() -> None:
    config = make_config()
    assert (config.quant, config.dtype, config.kv_cache_dtype) == ("int8_wo", "auto", "auto")
    assert config.max_batch_size is config.max_num_tokens is config.max_seq_len is None  # the backend's
    assert resolve_max_seq_len(config, 2048) == 2048
    assert resolve_max_seq_len(config, 131072) == 8192
    assert resolve_max_seq_len(make_config(max_seq_len=100000), 131072) == 100000


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"max_batch_size": 0}, "max_batch_size: 0"),
        ({"max_num_tokens": 1}, "max_num_tokens: 1"),
        ({"max_seq_len": "8192"}, "max_seq_len: '8192'"),
        ({"kv_cache_dtype": "u8"}, "kv_cache_dtype: 'u8'"),
        ({"quants": "f16"}, "quants: 'f16'"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, object], place: str) -> None:
    with pytest.raises(ConfigError, match=place):
        make_config(**options)


def test_every_scheme_is_found_by_name_and_others_are_listed() -> None:
    for scheme in SCHEMES:
        assert get_scheme(scheme.backend, scheme.name) is scheme
    with pytest.raises(ConfigError, match="int8_wo, fp8, int4_awq"):
        get_scheme("openvino", "w4a8_awq")


def test_auto_says_what_it_chose_and_why() -> None:
    name, why = choose_backend("auto")
    assert name == get_backend("auto").name == "openvino"
    assert why
    with pytest.raises(ConfigError, match="'cuda'"):
        choose_backend("cuda")


def test_the_build_stage_loads_no_heavy_library_until_it_works() -> None:
    code = (
        "import sys, trtb.build.pipeline, trtb.build.checkpoint, trtb.build.store; "
        "print(sorted({'numpy', 'openvino', 'openvino_genai', 'nncf', 'gguf', 'tokenizers', "
        "'transformers', 'huggingface_hub'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert ended.stdout == "[]\n"


def test_the_pinned_toolchain_is_what_is_installed() -> None:
    pins = {pin.distribution: pin.version for pin in OPENVINO_TOOLCHAIN}
    assert installed_versions(tuple(pins)) == pins
    assert installed_versions(("no-such-distribution-here",)) == {}


def test_the_texts_ship_with_the_package() -> None:
    assert len(quality_texts()) == 8
    assert all(len(text) > 200 and "%%" not in text for text in quality_texts())


def test_memory_is_the_least_of_every_limit_above(tmp_path: Path) -> None:
    inner = tmp_path / "pod" / "job"
    inner.mkdir(parents=True)
    (tmp_path / "pod" / "memory.max").write_text("1000\n")
    (tmp_path / "pod" / "memory.current").write_text("700\n")
    (tmp_path / "pod" / "memory.stat").write_text("anon 100\ninactive_file 50\n")
    (inner / "memory.max").write_text("max\n")
    assert cgroup_available_bytes(tmp_path, "/pod/job") == [350]
    assert cgroup_available_bytes(tmp_path, "/") == []
    assert available_host_bytes() > 0
