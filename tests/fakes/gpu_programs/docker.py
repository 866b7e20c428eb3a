"""A docker whose containers are sessions of processes on this machine, with the container's paths made ours.

A container outlives its client, as the real ones do; `docker kill` ends it. It knows the options that trtb
gives and no others.
"""

import argparse
import csv
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from fakes.gpu_image import IMAGE, record

IMAGE_ENVIRONMENT = ["PATH=/bin", "NVIDIA_TRITON_SERVER_VERSION=26.07"]
NO_GPUS = 'could not select device driver "" with capabilities: [[gpu]].'
FLAGS = ("rm", "init", "read-only")
OPTIONS = ("pull", "name", "gpus", "shm-size", "tmpfs", "security-opt", "cap-drop", "user", "workdir")
LISTS = ("label", "ulimit", "mount", "env", "publish")


def main(arguments: list[str]) -> int:
    settings = record("docker", arguments)
    folder = Path(settings["folder"]) / "containers"
    if settings.get("docker") == "down":
        sys.exit("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.")
    verb, rest = arguments[0], arguments[1:]
    if verb == "version":
        print("28.2.2")
    elif verb == "info":
        print(json.dumps({"ServerVersion": "28.2.2", "Runtimes": {"nvidia": {}, "runc": {}}}))
    elif verb == "image":
        if rest[-1] != settings.get("image", IMAGE):
            sys.exit(f"Error response from daemon: No such image: {rest[-1]}")
        print(json.dumps(settings.get("image_environment", IMAGE_ENVIRONMENT)))
    elif verb == "ps":
        return list_containers(folder, rest)
    elif verb == "kill":
        return kill(folder, rest[-1])
    elif verb == "exec":
        return execute(folder, rest[0], rest[1:])
    elif verb == "run":
        return run(folder, rest, settings)
    else:
        sys.exit(f"docker: '{verb}' is not a docker command.")
    return 0


def run(folder: Path, arguments: list[str], settings: dict[str, Any]) -> int:
    parser = argparse.ArgumentParser(prog="docker run", allow_abbrev=False)
    for name in FLAGS:
        parser.add_argument(f"--{name}", action="store_true")
    for name in OPTIONS:
        parser.add_argument(f"--{name}")
    for name in LISTS:
        parser.add_argument(f"--{name}", action="append", default=[])
    parser.add_argument("image")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args(arguments)
    if settings.get("gpus") == "none":
        sys.exit(f"docker: Error response from daemon: {NO_GPUS}")
    devices = next(csv.reader([args.gpus]))
    if len(devices) != 1:
        sys.exit(f"docker: invalid argument {args.gpus!r} for --gpus")
    mounts = dict(read_mount(text) for text in args.mount)
    mounts["/opt/tritonserver"] = f"{settings['root']}/opt/tritonserver"
    environment = {
        **dict(text.partition("=")[::2] for text in args.env),
        **{name: os.environ[name] for name in ("PATH", "FAKE_GPU", "LD_LIBRARY_PATH") if name in os.environ},
        "FAKE_MOUNTS": json.dumps(mounts),
        "TMPDIR": str(folder),
    }
    process = subprocess.Popen(
        [ours(text, mounts) for text in args.command], env=environment, start_new_session=True
    )
    labels = dict(text.partition("=")[::2] for text in args.label)
    path = folder / f"{args.name}.json"
    path.write_text(json.dumps({"pid": process.pid, "labels": labels, "mounts": mounts}))
    signal.signal(signal.SIGTERM, lambda number, _frame: process.send_signal(number))
    status = process.wait()
    path.unlink(missing_ok=True)
    return 128 - status if status < 0 else status


def read_mount(text: str) -> tuple[str, str]:
    given = dict(part.partition("=")[::2] for part in next(csv.reader([text])))
    if not Path(given["source"]).exists():
        sys.exit(f"docker: Error response from daemon: bind source path does not exist: {given['source']}")
    return given["target"], given["source"]


def ours(text: str, mounts: dict[str, str]) -> str:
    """Return an argument with the container's paths turned into ours."""
    for target, source in mounts.items():
        text = re.sub(rf"(^|=){re.escape(target)}(?=/|$)", lambda found, to=source: found[1] + to, text)
    return text


def list_containers(folder: Path, arguments: list[str]) -> int:
    wanted = [
        arguments[index + 1].removeprefix("label=").partition("=")[::2]
        for index, text in enumerate(arguments)
        if text == "--filter"
    ]
    for path in sorted(folder.glob("*.json")):
        labels = json.loads(path.read_text())["labels"]
        if all(name in labels and value in ("", labels[name]) for name, value in wanted):
            print(f"{path.stem}\t{labels['trtb.pid']}")
    return 0


def kill(folder: Path, name: str) -> int:
    path = folder / f"{name}.json"
    try:
        pid = json.loads(path.read_text())["pid"]
        os.killpg(pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        print(f"Error response from daemon: No such container: {name}", file=sys.stderr)
        return 1
    finally:
        path.unlink(missing_ok=True)
    return 0


def execute(folder: Path, name: str, command: list[str]) -> int:
    try:
        mounts = json.loads((folder / f"{name}.json").read_text())["mounts"]
    except FileNotFoundError:
        print(f"Error response from daemon: No such container: {name}", file=sys.stderr)
        return 1
    return subprocess.run([ours(text, mounts) for text in command], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
