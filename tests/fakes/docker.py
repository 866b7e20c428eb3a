"""A docker client whose engine runs each command right here, with the container's paths turned into ours.

It knows the options that trtb gives and no others. `install` puts it on a PATH; it appends every call to a
file, so that a test sees what a container was allowed. FAKE_DOCKER, a JSON object, says what goes wrong, and
which folders stand for those of the image.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

VARIABLE = "FAKE_DOCKER"
CALLS = "FAKE_DOCKER_CALLS"
IMAGE = "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
DIGEST = "nvcr.io/nvidia/tritonserver@sha256:" + "ab" * 32
RUN_OPTIONS = ("name", "gpus", "shm-size", "network", "security-opt", "cap-drop", "user", "workdir")


def install(folder: Path) -> Path:
    """Make `bin/docker` below a folder, and return `bin`."""
    programs = folder / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    path = programs / "docker"
    path.write_text(
        f"#!{sys.executable} -S\nimport runpy\nrunpy.run_path({str(Path(__file__))!r}, run_name='__main__')\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return programs


def read_calls(path: Path) -> list[list[str]]:
    """Return every call so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main(arguments: list[str]) -> None:
    state = json.loads(os.environ.get(VARIABLE, "{}"))
    if path := os.environ.get(CALLS):
        with Path(path).open("a") as file:
            file.write(json.dumps(arguments) + "\n")
    if state.get("engine") == "down":
        sys.exit("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.")
    verb = arguments[0]
    if verb == "version":
        print("28.2.2")
    elif verb == "image":
        if arguments[-1] not in {IMAGE, DIGEST}:
            sys.exit(f"Error response from daemon: No such image: {arguments[-1]}")
        print(json.dumps([DIGEST]))
    elif verb == "run":
        run(arguments[1:], state)
    elif verb != "kill":
        sys.exit(f"docker: '{verb}' is not a docker command.")


def run(arguments: list[str], state: dict[str, Any]) -> None:
    parser = argparse.ArgumentParser(prog="docker run", allow_abbrev=False)
    parser.add_argument("--rm", action="store_true")
    for name in RUN_OPTIONS:
        parser.add_argument(f"--{name}")
    for name in ("mount", "env", "ulimit"):
        parser.add_argument(f"--{name}", action="append", default=[])
    parser.add_argument("image")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args(arguments)
    if state.get("gpus") == "none":
        sys.exit('docker: could not select device driver "" with capabilities: [[gpu]].')
    places = {**state.get("image_folders", {}), **dict(read_mount(each) for each in args.mount)}

    def ours(text: str) -> str:
        for target in sorted(places, key=len, reverse=True):
            if text == target or text.startswith(f"{target}/"):
                return places[target] + text[len(target) :]
        return text

    environment = dict(each.partition("=")[::2] for each in args.env)
    kept = {name: os.environ[name] for name in ("PATH", "FAKE_TRTLLM") if name in os.environ}
    work_dir = ours(args.workdir)
    os.chdir(work_dir if Path(work_dir).is_dir() else "/")
    command = [args.command[0], *map(ours, args.command[1:])]
    os.execvpe(command[0], command, {**environment, **kept})


def read_mount(text: str) -> tuple[str, str]:
    fields = next(csv.reader([text]))
    given = dict(field.partition("=")[::2] for field in fields)
    if not Path(given["source"]).exists():
        sys.exit(f"docker: Error response from daemon: bind source path does not exist: {given['source']}")
    return given["target"], given["source"]


if __name__ == "__main__":
    main(sys.argv[1:])
