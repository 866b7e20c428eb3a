"""Where an engine is served: what is found, and what is said where nothing is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes.gpu_image import IMAGE, GpuImage, install
from fakes.manifest import fake_manifest
from fakes.trtllm_engine import fake_trtllm_manifest

from trtb.build.errors import ConfigError, HardwareError
from trtb.runner.launching.launch_docker import DockerLaunch
from trtb.runner.launching.launch_embedded import Embedded
from trtb.runner.launching.launch_image import ImageLaunch, read_image
from trtb.runner.launching.place import DockerPlace, EmbeddedPlace, ImagePlace, choose_place, image_of

ENGINE = fake_trtllm_manifest(tp_size=2)
VERSIONS = {"tensorrt_llm": "1.2.1", "tensorrt": "10.14.1.48"}
DIGEST = "nvcr.io/nvidia/tritonserver@sha256:" + "ab" * 32


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuImage:
    image = install(tmp_path / "fake")
    use(image, monkeypatch)
    return image


def use(fake: GpuImage, monkeypatch: pytest.MonkeyPatch, /, **settings: Any) -> None:
    for name, value in fake.environment(**settings).items():
        monkeypatch.setenv(name, value)


def test_a_cpu_engine_is_served_embedded_without_a_look_around(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    place = choose_place("auto", fake_manifest())
    assert isinstance(place, EmbeddedPlace)
    assert isinstance(place.launch(tmp_path, fake_manifest(), ()), Embedded)


@pytest.mark.parametrize(
    ("choice", "manifest", "expected"),
    [
        ("image", fake_manifest(), "embedded"),
        ("docker", fake_manifest(), "embedded"),
        ("embedded", ENGINE, "image or docker"),
    ],
)
def test_a_place_that_is_not_the_backends_is_a_wrong_option(choice, manifest, expected) -> None:
    with pytest.raises(ConfigError, match=expected):
        choose_place(choice, manifest)


def test_within_the_image_its_own_server_is_taken_before_any_container(image, tmp_path) -> None:
    place = choose_place("auto", ENGINE, root=image.root)
    assert isinstance(place, ImagePlace)
    assert place.runtime == VERSIONS
    launch = place.launch(tmp_path, ENGINE, ("0", "1"))
    assert launch == ImageLaunch(place.image, 2, ("0", "1"))
    assert place.image.binary.is_file()


@pytest.mark.parametrize(
    ("packages", "container", "versions"),
    [
        ({"tensorrt_llm": "1.0.0", "tensorrt": "10.11.0.33.post1"}, "25.10", ("1.0.0", "10.11.0.33")),
        ({"tensorrt_llm": "1.0.0"}, "", ("1.0.0", "10.11.0.33")),  # by the table of releases
        ({"tensorrt_llm": "9.9"}, "26.07", ("9.9", None)),  # what is there counts, not the image's name
        ({}, "26.07", ("1.2.1", "10.14.1.48")),
        ({}, "", (None, None)),
    ],
)
def test_an_image_is_asked_for_its_versions(tmp_path, packages, container, versions) -> None:
    image = install(tmp_path / "fake", packages)
    found = read_image(image.root, {"NVIDIA_TRITON_SERVER_VERSION": container}).versions
    assert (found.get("tensorrt_llm"), found.get("tensorrt")) == versions


def test_on_the_host_docker_runs_the_image_that_built_the_engine(image, tmp_path, monkeypatch) -> None:
    place = choose_place("auto", ENGINE)
    assert place == DockerPlace(IMAGE, VERSIONS)
    assert place.launch(tmp_path, ENGINE, ("0", "1")) == DockerLaunch(IMAGE, tmp_path, 2, ("0", "1"))
    pinned = ENGINE.model_copy(update={"container": DIGEST})
    use(image, monkeypatch, image=DIGEST, image_environment=["NVIDIA_TRITON_SERVER_VERSION=25.10"])
    assert choose_place("docker", pinned) == DockerPlace(
        DIGEST, {"tensorrt_llm": "1.0.0", "tensorrt": "10.11.0.33"}
    )


def test_an_image_that_says_nothing_of_itself_is_known_by_its_tag_or_by_the_engine(
    image, monkeypatch
) -> None:
    use(image, monkeypatch, image_environment=None)
    assert choose_place("docker", ENGINE) == DockerPlace(IMAGE, VERSIONS)
    pinned = ENGINE.model_copy(update={"container": DIGEST})
    use(image, monkeypatch, image=DIGEST, image_environment=None)
    assert choose_place("docker", pinned) == DockerPlace(DIGEST, VERSIONS)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"docker": "down"}, "Cannot connect to the Docker daemon"),
        ({"image": "another"}, f"the image {IMAGE} is not on this machine"),
    ],
)
def test_where_nothing_serves_it_is_told_what_was_looked_for_where(
    image, tmp_path, monkeypatch, settings, said
) -> None:
    use(image, monkeypatch, **settings)
    with pytest.raises(HardwareError, match="built with TensorRT-LLM") as caught:
        choose_place("auto", ENGINE, root=tmp_path)
    assert f"{tmp_path}/opt/tritonserver/bin/tritonserver: not found" in caught.value.message
    assert said in caught.value.message
    assert IMAGE in caught.value.hint
    assert caught.value.exit_code == 4
    with pytest.raises(HardwareError) as caught:
        choose_place("image", ENGINE, root=tmp_path)
    assert said not in caught.value.message


def test_without_the_backend_mpi_or_docker_each_is_named(image, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(HardwareError, match=r"mpirun: no such command.*docker: no such command"):
        choose_place("auto", ENGINE, root=image.root)
    (image.root / "opt/tritonserver/backends/tensorrtllm/libtriton_tensorrtllm.so").unlink()
    with pytest.raises(HardwareError, match=r"libtriton_tensorrtllm\.so: not found"):
        choose_place("image", ENGINE, root=image.root)


def test_an_engine_of_an_unknown_release_has_no_image(image, monkeypatch, tmp_path) -> None:
    odd = ENGINE.model_copy(update={"toolchain": {"tensorrt_llm": "9.9"}})
    assert image_of(odd) is None
    with pytest.raises(HardwareError, match=r"no image is known with TensorRT-LLM 9\.9") as caught:
        choose_place("docker", odd, root=tmp_path)
    assert "build it again" in caught.value.hint


@pytest.mark.skipif(Path("/var/run/docker.sock").exists(), reason="a docker engine answers here")
def test_this_machines_own_docker_is_told_of(tmp_path) -> None:
    with pytest.raises(HardwareError, match="docker"):
        choose_place("docker", ENGINE, root=tmp_path)
