"""What the container files say: the code's versions, no more rights than needed, nothing sent by mistake."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import subprocess
import sys
from functools import cache
from types import ModuleType
from typing import Any

import dockerfiles
import pytest
import yaml
from dockerfiles import DOCKER, ROOT, assignments, copied, is_sent
from fakes.triton import FakeTriton, response
from packaging.specifiers import SpecifierSet

from trtb.build import __version__
from trtb.build.compatibility import PRIMARY_TRTLLM
from trtb.build.trtllm.trtllm_container import SHM_SIZE, STACK_BYTES
from trtb.runner.errors import RequestError
from trtb.runner.launching.launch_docker import HOME
from trtb.runner.launching.launch_image import BACKEND
from trtb.runner.options import RunOptions
from trtb.runner.server import ServerConfig

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.skipif(
    not (ROOT / ".dockerignore").is_file(), reason="these are the rules of a checkout, and this is none"
)
FILES = {"gpu": "Dockerfile", "cpu": "cpu.Dockerfile"}
DIGESTS = {"gpu": ("TRITON_IMAGE", "TRITON_DIGEST"), "cpu": ("PYTHON_IMAGE", "PYTHON_DIGEST")}
SECRETS = re.compile(
    r"(?i:password|passwd=|api_?key|bearer )|[A-Z]_TOKEN\b|\bhf_[A-Za-z0-9]{8}|//[^/\s]+:[^/\s]+@"
)


@pytest.fixture(params=["gpu", "cpu"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def dockerfile(kind: str) -> dockerfiles.Dockerfile:
    return dockerfiles.read(DOCKER / FILES[kind])


@pytest.fixture(scope="module")
def healthcheck() -> ModuleType:
    spec = importlib.util.spec_from_file_location("trtb_healthcheck", DOCKER / "healthcheck.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@cache
def services() -> dict[str, dict[str, Any]]:
    if not (DOCKER / "compose.yaml").is_file():
        return {}
    return yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))["services"]  # type: ignore[no-any-return]


def last_argument(dockerfile: dockerfiles.Dockerfile, name: str) -> str | None:
    given = [assignments(value).get(name) for value in dockerfile.last.values("ARG")]
    return next((value for value in given if value is not None), None)


# --- the images ---------------------------------------------------------------------------------


def test_the_gpu_image_is_the_one_of_the_compatibility_table() -> None:
    dockerfile = dockerfiles.read(DOCKER / "Dockerfile")
    assert dockerfile.arguments["TRITON_IMAGE"] == PRIMARY_TRTLLM.image
    check = dockerfile.stages[0].values("RUN")[0]
    assert f"[ ! -f /{BACKEND} ]" in check


def test_the_cpu_image_s_python_is_one_that_trtb_runs_on() -> None:
    image = dockerfiles.read(DOCKER / "cpu.Dockerfile").arguments["PYTHON_IMAGE"]
    python = re.fullmatch(r"python:(3\.\d+)-slim-\w+", image)
    assert python
    assert python[1] in SpecifierSet(pyproject()["project"]["requires-python"])
    classifiers = pyproject()["project"]["classifiers"]
    assert f"Programming Language :: Python :: {python[1]}" in classifiers


def test_each_image_can_be_pinned_by_a_digest_and_says_where_it_is_not(
    kind: str, dockerfile: dockerfiles.Dockerfile
) -> None:
    image, digest = DIGESTS[kind]
    assert dockerfile.arguments[digest] == ""
    assert dockerfile.stages[0].base == f"${{{image}}}${{{digest}:+@${{{digest}}}}}"
    assert all(stage.base == dockerfile.stages[0].name for stage in dockerfile.stages[1:])
    assert f'[ -z "${{{digest}}}" ]' in dockerfile.stages[0].values("RUN")[0]


def test_the_labels_name_this_version_and_the_base(kind: str, dockerfile: dockerfiles.Dockerfile) -> None:
    labels = assignments(" ".join(dockerfile.last.values("LABEL")))
    assert last_argument(dockerfile, "TRTB_VERSION") == __version__
    assert labels["org.opencontainers.image.version"] == "${TRTB_VERSION}"
    assert labels["org.opencontainers.image.licenses"] == pyproject()["project"]["license"]
    image, digest = DIGESTS[kind]
    assert labels["org.opencontainers.image.base.name"] == f"${{{image}}}"
    assert labels["org.opencontainers.image.base.digest"] == f"${{{digest}}}"
    # an argument that a stage does not name is empty in it
    assert {image, digest} <= set(dockerfile.last.values("ARG"))


def test_all_packages_have_the_versions_of_the_constraints(dockerfile: dockerfiles.Dockerfile) -> None:
    installs = [
        line
        for step in dockerfile.steps()
        for line in re.split(r"[;&]+", step.value)
        if " install " in line and "pip" in line
    ]
    assert len(installs) == 2
    for line in installs:
        assert "/opt/trtb/bin/pip install " in line
        assert "--constraint /src/constraints.txt" in line or "--no-deps" in line


def test_trtb_runs_as_a_user_without_rights_with_its_data_in_a_volume(
    dockerfile: dockerfiles.Dockerfile,
) -> None:
    last = dockerfile.last
    assert last.steps[-1].instruction == "CMD"
    assert last.values("USER") == ["${TRTB_UID}:${TRTB_GID}"]
    for name in ("TRTB_UID", "TRTB_GID"):
        number = last_argument(dockerfile, name)
        assert number
        assert int(number) > 0
    order = [step.instruction for step in last.steps]
    assert "RUN" not in order[order.index("USER") :]
    environment = assignments(" ".join(last.values("ENV")))
    assert environment["TRTB_HOME"] == "/data"
    assert environment["HOME"] == str(HOME)
    assert last.values("VOLUME") == ["/data"]
    assert last.values("STOPSIGNAL") == ["SIGTERM"]
    assert json.loads(last.values("ENTRYPOINT")[0]) == ["trtb"]


def test_no_file_of_the_containers_holds_a_secret() -> None:
    for path in DOCKER.iterdir():
        found = SECRETS.findall(path.read_text(encoding="utf-8"))
        assert not found, f"{path.name}: {found}"


def test_a_secret_would_be_noticed() -> None:
    for text in ("ENV HF_TOKEN=abc", "--index-url https://me:word@host/simple", "ARG API_KEY"):
        assert SECRETS.search(text)


def test_what_is_copied_is_there_and_is_sent(dockerfile: dockerfiles.Dockerfile) -> None:
    patterns = dockerfiles.ignore_patterns()
    names = {stage.name for stage in dockerfile.stages}
    for step in dockerfile.steps():
        if step.instruction != "COPY":
            continue
        stage, sources, _ = copied(step.value)
        assert stage in {None, *names}
        for source in sources if stage is None else ():
            assert (ROOT / source).exists()
            assert is_sent(source, patterns), f"{source}: .dockerignore keeps it out"


# --- .dockerignore ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *(
            ".env",
            ".git/config",
            ".venv/bin/python",
            ".netrc",
            ".cache/trtb/models/x",
            ".ci/run",
            ".coverage",
        ),
        *("id_rsa", "key.pem", "secrets.yaml", "pip.conf", "data/input.jsonl", "demo-out/answers.jsonl"),
        *("docker/.env", "tools/.env", "build/.secret/key", "runner/__pycache__/run.cpython-311.pyc"),
        *(
            "build/lib/trtb/build/gone.py",
            "build/bdist.linux-x86_64/x",
            "tests/conftest.py",
            "docker/Dockerfile",
        ),
    ],
)
def test_what_no_image_is_made_of_is_not_sent_to_the_builder(name: str) -> None:
    assert not is_sent(name, dockerfiles.ignore_patterns())


def test_every_module_and_template_is_sent() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: nothing says which files are the project's")
    listing = subprocess.run(
        ["git", "ls-files", "-z", "build", "model_repo", "runner", "tools"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    patterns = dockerfiles.ignore_patterns()
    names = [name for name in listing.stdout.decode().split("\0") if name]
    assert len(names) > 100
    assert [name for name in names if not is_sent(name, patterns)] == []


# --- compose.yaml -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", services())
def test_a_service_has_no_more_rights_than_it_needs(name: str) -> None:
    service = services()[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert service["init"] is True
    assert service["tmpfs"][0].startswith(f"{HOME}:")
    assert service["user"] == "${TRTB_UID:-1000}:${TRTB_GID:-1000}"
    assert not {"privileged", "cap_add", "pid", "ipc", "devices"} & set(service)
    (volume,) = service["volumes"]
    assert (volume["source"], volume["target"]) == ("${TRTB_DATA:-../data}", "/data")
    for port in service.get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:\$\{TRTB_\w+_PORT:-(\d+)\}:\1", port)


@pytest.mark.parametrize("name", services())
def test_a_service_is_built_from_its_dockerfile_with_arguments_that_this_has(name: str) -> None:
    build = services()[name]["build"]
    assert (DOCKER / build["context"]).resolve() == ROOT
    dockerfile = dockerfiles.read(ROOT / build["dockerfile"])
    declared = {word.partition("=")[0] for word in dockerfile.last.values("ARG")} | set(dockerfile.arguments)
    # without values: those stand in the Dockerfile alone
    assert set(build["args"]) <= declared
    assert services()[name]["image"] == ("trtb:cpu" if "cpu" in name else "trtb:gpu")


@pytest.mark.parametrize("name", [name for name in services() if "cpu" not in name])
def test_a_gpu_service_has_the_gpus_and_what_mpi_asks_for(name: str) -> None:
    service = services()[name]
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert service["shm_size"] == SHM_SIZE
    assert service["ulimits"] == {"memlock": -1, "stack": STACK_BYTES}


@pytest.mark.parametrize("name", [name for name in services() if "build" not in name and name != "toolchain"])
def test_a_service_is_watched_as_its_image_says_and_may_drain(name: str) -> None:
    service = services()[name]
    dockerfile = dockerfiles.read(ROOT / service["build"]["dockerfile"])
    options, _, command = dockerfile.last.values("HEALTHCHECK")[0].partition(" CMD ")
    assert service["healthcheck"]["test"] == ["CMD", *json.loads(command)]
    told = dict(option.removeprefix("--").split("=") for option in options.split())
    for key in ("interval", "timeout", "retries"):
        assert str(service["healthcheck"][key]) == told[key]
    grace = int(service["stop_grace_period"].removesuffix("s"))
    fields = RunOptions.__dataclass_fields__
    assert grace > fields["grace_s"].default + ServerConfig.__dataclass_fields__["exit_timeout_s"].default


def test_a_run_has_no_network_and_a_server_listens_where_its_ports_lead() -> None:
    for kind in ("", "-cpu"):
        assert services()[f"run{kind}"]["network_mode"] == "none"
        serve = services()[f"serve{kind}"]
        assert serve["command"] == ["serve", "--host", "0.0.0.0"]
        assert [port.rpartition(":")[2] for port in serve["ports"]] == ["8001", "8002"]
    assert services()["run"]["command"] == ["run", "/data/input.jsonl", "-o", "/data/out.jsonl"]


def test_up_alone_starts_the_run_and_nothing_else() -> None:
    assert [name for name, service in services().items() if not service.get("profiles")] == ["run"]
    for name, service in services().items():
        for needed in service.get("depends_on", {}):
            assert set(services()[needed]["profiles"]) & set(service["profiles"]), f"{name} -> {needed}"


def test_the_readme_tells_every_variable_with_its_default() -> None:
    text = (DOCKER / "compose.yaml").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.partition("\n## Containers\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    defaults = dict(re.findall(r"\$\{(\w+):-([^}]+)\}", text))
    arguments = {name for service in services().values() for name in service["build"]["args"]}
    for name in {*defaults, *arguments}:
        (row,) = [line for line in rows if f"`{name}`" in line]
        assert defaults.get(name, "") in row
    assert set(re.findall(r"`([A-Z]+_[A-Z_]+)`", "".join(rows))) == {*defaults, *arguments}


# --- the health check ---------------------------------------------------------------------------

SERVE = ["/opt/trtb/bin/python", "/opt/trtb/bin/trtb", "serve", "--host", "0.0.0.0"]
LEADER = ["/opt/tritonserver/bin/tritonserver", "--grpc-address=0.0.0.0", "--grpc-port=8001"]
FOLLOWER = ["/opt/tritonserver/bin/tritonserver", "--allow-grpc=false", "--allow-http=false"]
MPIRUN = ["mpirun", "-n", "1", "sh", "-c", "exec", "rank0", *LEADER, ":", *FOLLOWER]


def test_only_serve_is_asked(healthcheck: ModuleType) -> None:
    assert healthcheck.is_serving([["docker-init", "--", "trtb", "serve"]])
    assert healthcheck.is_serving([["sh"], SERVE])
    assert not healthcheck.is_serving([["python", "/opt/trtb/bin/trtb", "run", "serve"], ["trtb"], []])


def test_the_servers_that_listen_are_found_once_each(healthcheck: ModuleType) -> None:
    other = ["tritonserver", "--grpc-address=127.0.0.1", "--grpc-port=8003"]
    found = healthcheck.find_endpoints([SERVE, MPIRUN, LEADER, FOLLOWER, other, []])
    assert found == ["127.0.0.1:8001", "127.0.0.1:8003"]


async def one_token(request: Any, context: Any) -> Any:
    yield response(request.id, [1])


async def no_token(request: Any, context: Any) -> Any:
    await context.abort(13, "the engine is gone")
    yield


@pytest.mark.parametrize(("answer", "fault"), [(one_token, ""), (no_token, "the engine is gone")])
def test_a_server_is_alive_when_it_generates(healthcheck: ModuleType, answer: Any, fault: str) -> None:
    async def told() -> str:
        async with FakeTriton(answer).serving() as endpoint:
            try:
                await healthcheck.probe(endpoint)
            except RequestError as exc:
                return exc.message
        return ""

    message = asyncio.run(told())
    assert fault in message
    assert bool(message) == bool(fault)
