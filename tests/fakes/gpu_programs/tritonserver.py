"""A tritonserver with TensorRT-LLM's backend: strict about the model, then the embedded one with a stand-in.

The stand-in has the GPU model's own configuration, but for its backend; see `gpu_model/model.py`.
"""

import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from fakes.gpu_image import record

from trtb.model_repo import pbtxt
from trtb.runner.launching.launch import ServerConfig
from trtb.runner.launching.launch_embedded import Embedded, find_install

KNOWN = {
    "model-repository", "model-control-mode", "load-model", "disable-auto-complete-config",
    "exit-timeout-secs", "log-format", "backend-config", "grpc-address", "grpc-port", "metrics-address",
    "metrics-port", "grpc-restricted-protocol", "allow-http", "allow-grpc", "allow-metrics",
}  # fmt: skip


def main(arguments: list[str]) -> None:
    settings = record("tritonserver", arguments)
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    options = [argument.removeprefix("--").partition("=")[::2] for argument in arguments]
    if unknown := [name for name, _ in options if name not in KNOWN]:
        sys.exit(f"tritonserver: unrecognized option '--{unknown[0]}'")
    values = dict(options)
    failure = settings.get("fail", {})
    if str(rank) in failure:
        print(failure[str(rank)], flush=True)
        sys.exit("error: creating server: Internal - failed to load all models")
    model = pbtxt.read(Path(values["model-repository"]) / values["load-model"] / "config.pbtxt")
    tokens_per_block = load(model, rank)
    if rank == 0:
        pbtxt.set_parameters(model, {"fake_tokens_per_block": str(tokens_per_block)})
        serve(arguments, values, model)
    if values["allow-grpc"] != "false":
        sys.exit("failed to start gRPC service: Address already in use")
    signal.signal(signal.SIGTERM, lambda _number, _frame: end(Path(settings["folder"])))
    print("rank is ready", flush=True)
    while True:
        signal.pause()


def end(folder: Path) -> None:
    """End, and say if the leader, which needs the other ranks for what is in flight, has not ended before."""
    calls = [json.loads(line) for line in (folder / "tritonserver.calls").read_text().splitlines()]
    leaders = [call["pid"] for call in calls if call["environment"]["OMPI_COMM_WORLD_RANK"] == "0"]
    if Path(f"/proc/{leaders[-1]}").exists():
        print("asked to end before the leader", flush=True)
    sys.exit(0)


def load(model: Any, rank: int) -> int:
    """Look at the engine as the backend does; print its words and end where it cannot be loaded.

    Returns the tokens of a KV block, as the engine was built.
    """
    if model.backend != "tensorrtllm":
        sys.exit(f"unable to find backend library for backend '{model.backend}'")
    path = model.parameters["gpt_model_path"].string_value
    for target, source in json.loads(os.environ.get("FAKE_MOUNTS", "{}")).items():
        if Path(path).is_relative_to(target):
            path = str(Path(source) / Path(path).relative_to(target))
    built = json.loads((Path(path) / "config.json").read_text())
    mapping = built["pretrained_config"]["mapping"]
    if int(os.environ["OMPI_COMM_WORLD_SIZE"]) != mapping["world_size"]:
        print("With communicationMode kLEADER, MPI worldSize is expected to be equal to tp*pp", flush=True)
        sys.exit(1)
    if not (Path(path) / f"rank{rank}.engine").is_file():
        sys.exit(f"Error opening engine file: {path}/rank{rank}.engine")
    return int(built["build_config"]["plugin_config"]["tokens_per_block"])


def serve(arguments: list[str], values: dict[str, str], model: Any) -> None:
    """Become the embedded server; the process stays the same one."""
    folder = Path(tempfile.mkdtemp())
    version = folder / "repository" / values["load-model"] / "1"
    version.mkdir(parents=True)
    shutil.copy(Path(__file__).parents[1] / "gpu_model" / "model.py", version)
    model.backend = "python"
    pbtxt.write(version.parent / "config.pbtxt", model)
    config = ServerConfig(folder / "repository", folder, folder / "server.log")
    embedded = Embedded()
    embedded.lay_out(config)
    prefix = values["backend-config"].rpartition("=")[2]
    plan = embedded.plan(config, _listening(values, prefix))
    own = [argument for argument in arguments if not argument.startswith("--model-repository=")]
    argv = [
        str(find_install().binary),
        f"--backend-directory={folder / 'backends'}",
        "--allow-gpu-metrics=false",
        "--pinned-memory-pool-byte-size=0",
        f"--model-repository={config.repository}",
        *own,
    ]
    os.execve(argv[0], argv, {**os.environ, **plan.environment})


def _listening(values: dict[str, str], prefix: str) -> Any:
    from trtb.runner.launching.launch import Listening

    return Listening(
        values["grpc-address"], int(values["grpc-port"]), int(values["metrics-port"]), None, prefix
    )


if __name__ == "__main__":
    main(sys.argv[1:])
