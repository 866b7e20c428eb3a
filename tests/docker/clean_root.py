"""Build cpu.Dockerfile without a container engine, in a clean Debian root, and work in it as compose does.

Each stage is a copy of its base, and each step runs in it by chroot: nothing of this machine is seen. Then
`trtb run`, `trtb serve` and the health check run there as the image's user, without a network, with the root
read-only, /tmp in memory and not executable, and /dev/shm of docker's size. Needs root, unshare and chroot.
Not part of the test suite; README, Containers, says when it was run.

    debootstrap --variant=minbase --include=PACKAGES bookworm WORK/base
    (a Python below WORK/base/usr/local, with its shared library)
    python tests/docker/clean_root.py WORK HOME_WITH_AN_ENGINE INPUT.jsonl --bind FOLDER ...
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import dockerfiles
from dockerfiles import Stage, Step, assignments, copied

SECRET = re.compile(r"--mount=type=secret,id=pip,target=(\S+)")
FLAGS = re.compile(r"^(?:--mount=\S+\s+)+")
DEVICES = ("null", "zero", "random", "urandom")


class CleanBuild:
    """The stages of one Dockerfile as folders below `work`."""

    def __init__(self, work: Path, binds: list[Path], pip_config: Path | None) -> None:
        self.work = work
        self.binds = binds
        self.pip_config = pip_config
        self.roots: dict[str, Path] = {}
        self.environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        self.shell = ["/bin/sh", "-c"]

    def build(self, dockerfile: dockerfiles.Dockerfile) -> Path:
        self.environment |= dockerfile.arguments
        for number, stage in enumerate(dockerfile.stages):
            base = self.roots.get(stage.base, self.work / "base")
            root = self.work / (stage.name or f"stage{number}")
            shutil.rmtree(root, ignore_errors=True)
            subprocess.run(["cp", "-a", "--reflink=auto", base, root], check=True)
            self.roots[stage.name] = root
            for step in stage.steps:
                self._do(root, step)
        return root

    def _do(self, root: Path, step: Step) -> None:
        if step.instruction == "ARG":
            self.environment = assignments(step.value) | self.environment
        elif step.instruction == "ENV":
            self.environment |= assignments(step.value)
        elif step.instruction == "SHELL":
            self.shell = json.loads(step.value)
        elif step.instruction == "COPY":
            self._copy(root, *copied(step.value))
        elif step.instruction == "RUN":
            print(f"line {step.line}: {step.value[:100]}", flush=True)
            self._run(root, step.value)

    def _copy(self, root: Path, stage: str | None, sources: list[str], target: str) -> None:
        place = root / target.lstrip("/")
        source_root = dockerfiles.ROOT if stage is None else self.roots[stage]
        patterns = dockerfiles.ignore_patterns()
        for source in (source.lstrip("/") for source in sources):
            is_file = (source_root / source).is_file()
            into = place / Path(source).name if target.endswith("/") and is_file else place
            into.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-a", source_root / source, into], check=True)
            if stage is None and not is_file:
                for path in sorted(into.rglob("*"), reverse=True):
                    if not dockerfiles.is_sent(f"{source}/{path.relative_to(into)}", patterns):
                        shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _run(self, root: Path, value: str) -> None:
        setup = mounts_of_a_machine(root)
        binds = [(path, path) for path in self.binds]
        if self.pip_config and (secret := SECRET.search(value)):
            binds.append((self.pip_config, Path(secret[1])))
        for source, target in binds:
            place = root / str(target).lstrip("/")
            setup.append(
                f"mkdir -p {place}" if source.is_dir() else f"mkdir -p {place.parent}; touch {place}"
            )
            setup.append(f"mount --bind {source} {place}")
        command = [*self.shell, FLAGS.sub("", value)]
        variables = [f"{name}={text}" for name, text in self.environment.items()]
        setup.append(f"exec chroot {root} env -i {shlex.join([*variables, *command])}")
        subprocess.run(["unshare", "--mount", "--pid", "--fork", "sh", "-euc", "; ".join(setup)], check=True)


def mounts_of_a_machine(root: Path) -> list[str]:
    setup = [f"mount --bind {root} {root}", f"mount -t proc proc {root}/proc"]
    setup.append(f"mount -t tmpfs tmpfs {root}/dev")
    for name in DEVICES:
        setup.append(f"touch {root}/dev/{name}; mount --bind /dev/{name} {root}/dev/{name}")
    return [*setup, f"mkdir {root}/dev/shm; mount -t tmpfs -o size=64m,mode=1777 tmpfs {root}/dev/shm"]


USE = """
trtb --version
trtb preflight --for run || echo "preflight: $?"
trtb run /data/input.jsonl -o /data/out.jsonl --overwrite
test "$(wc -l < /data/out.jsonl)" -eq "$(wc -l < /data/input.jsonl)"
/opt/trtb/bin/python -I /opt/trtb/healthcheck.py
trtb serve --host 0.0.0.0 > /data/serve.txt &
server=$!
until grep -q metrics /data/serve.txt; do kill -0 $server; sleep 1; done
/opt/trtb/bin/python -I /opt/trtb/healthcheck.py
kill -STOP $(pidof tritonserver)
if /opt/trtb/bin/python -I /opt/trtb/healthcheck.py; then echo "a stopped server is called alive"; exit 1; fi
kill -CONT $(pidof tritonserver)
kill -TERM $server
wait $server
if touch /opt/x 2> /dev/null; then echo "the root can be written"; exit 1; fi
test -z "$(find /tmp -type f)"
"""


def use(root: Path, stage: Stage, home: Path, requests: Path) -> None:
    """Work in the built root as its user, isolated as compose.yaml says."""
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    for value in stage.values("ENV"):
        environment |= assignments(value)
    arguments = {name: text for value in stage.values("ARG") for name, text in assignments(value).items()}
    uid, gid = arguments["TRTB_UID"], arguments["TRTB_GID"]
    data = root.parent / "data"
    shutil.rmtree(data, ignore_errors=True)
    shutil.copytree(home, data, symlinks=True)
    shutil.copyfile(requests, data / "input.jsonl")
    subprocess.run(["chown", "-R", f"{uid}:{gid}", data], check=True)
    setup = mounts_of_a_machine(root)
    setup += [f"mount --bind {data} {root}/data", f"mount -o remount,bind,ro {root}"]
    setup.append(f"mount -t tmpfs -o mode=1777,size=2g,noexec,nosuid,nodev tmpfs {root}/tmp")
    setup.append("ip link set lo up")
    variables = [f"{name}={text}" for name, text in environment.items()]
    inner = ["env", "-i", *variables, "/bin/sh", "-euc", f"cd /data; {USE}"]
    who = [f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--bounding-set=-all", "--no-new-privs"]
    setup.append(f"exec chroot {root} {shlex.join(['setpriv', *who, *inner])}")
    isolated = ["unshare", "--mount", "--pid", "--net", "--fork", "sh", "-euc", "; ".join(setup)]
    subprocess.run(isolated, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("home", type=Path, help="a TRTB_HOME with an engine")
    parser.add_argument("requests", type=Path)
    parser.add_argument("--bind", type=Path, action="append", default=[], help="seen by the build's steps")
    parser.add_argument("--pip-config", type=Path, help="the build's secret called pip")
    parser.add_argument("--use-only", action="store_true", help="what an earlier call built")
    given = parser.parse_args()
    dockerfile = dockerfiles.read(dockerfiles.DOCKER / "cpu.Dockerfile")
    root = given.work.absolute() / f"stage{len(dockerfile.stages) - 1}"
    if not given.use_only:
        CleanBuild(given.work.absolute(), given.bind, given.pip_config).build(dockerfile)
    size = subprocess.run(["du", "-sm", f"{root}/opt/trtb", root], check=True, capture_output=True, text=True)
    print(size.stdout)
    use(root, dockerfile.last, given.home, given.requests)


if __name__ == "__main__":
    main()
