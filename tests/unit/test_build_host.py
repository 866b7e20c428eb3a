"""The host around the GPUs, on machines laid out below a folder, and on this one."""

from __future__ import annotations

import ctypes
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from trtb.build.errors import HardwareError
from trtb.build.probe.cgroups import available_host_bytes, cpu_quota, memory_limit_bytes, own_groups
from trtb.build.probe.cpu_flags import low_precision_flags
from trtb.build.probe.hardware_info import NumaNode, Problem, Ulimit
from trtb.build.probe.host_containers import find_container, probe_docker, read_docker_info
from trtb.build.probe.host_disks import measure_write_speed, mount_of, probe_disk, read_mounts
from trtb.build.probe.host_probe import (
    is_clock_synchronised,
    is_port_free,
    numa_nodes,
    nvidia_pci_devices,
    probe_cpu,
    probe_host,
    read_ulimits,
)

MEMINFO = "MemTotal:       65536000 kB\nMemFree:  1000 kB\nMemAvailable:   60000000 kB\nSwapTotal: 0 kB\n"


def lay_out(root: Path, files: dict[str, str]) -> Path:
    """Write files below a root folder and return it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_version_2_limits_bind_from_any_group_above(tmp_path: Path) -> None:
    root = lay_out(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/pod/job\n",
            "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
            "sys/fs/cgroup/pod/memory.max": "2000000\n",
            "sys/fs/cgroup/pod/memory.current": "1500000\n",
            "sys/fs/cgroup/pod/memory.stat": "anon 1\ninactive_file 300000\n",
            "sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/pod/job/memory.max": "max\n",
            "sys/fs/cgroup/pod/job/cpu.max": "max 100000\n",
        },
    )
    assert available_host_bytes(root) == 800000
    assert memory_limit_bytes(root) == 2000000
    assert cpu_quota(root) == 1.5


def test_version_1_limits_are_read_from_their_own_hierarchies(tmp_path: Path) -> None:
    root = lay_out(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "5:memory:/job\n4:cpu,cpuacct:/job\n1:name=systemd:/\n0::/\n",
            "sys/fs/cgroup/unified/cgroup.controllers": "",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "4000000\n",
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "3000000\n",
            "sys/fs/cgroup/memory/job/memory.stat": "inactive_file 1\ntotal_inactive_file 500000\n",
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "200000\n",
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    )
    assert available_host_bytes(root) == 1500000
    assert memory_limit_bytes(root) == 4000000
    assert cpu_quota(root) == 2.0


def test_a_container_that_sees_its_group_as_the_root_is_limited_by_it(tmp_path: Path) -> None:
    root = lay_out(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/docker/0123abcd\n",  # the host's path, which is not mounted here
            "sys/fs/cgroup/memory.max": "1000000\n",
            "sys/fs/cgroup/memory.current": "400000\n",
        },
    )
    assert available_host_bytes(root) == 600000


def test_without_limits_the_machine_s_memory_is_what_there_is(tmp_path: Path) -> None:
    root = lay_out(tmp_path, {"proc/meminfo": MEMINFO})
    assert available_host_bytes(root) == 60000000 * 1024
    assert (memory_limit_bytes(root), cpu_quota(root), own_groups("memory", root)) == (None, None, [])
    lay_out(
        root,
        {
            "proc/self/cgroup": "5:memory:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert memory_limit_bytes(root) is None


def cpuinfo(places: list[tuple[int, int]], flags: str) -> str:
    blocks = [
        f"processor\t: {number}\nmodel name\t: Some CPU\nphysical id\t: {package}\ncore id\t\t: {core}\n"
        f"flags\t\t: {flags}\n"
        for number, (package, core) in enumerate(places)
    ]
    return "\n".join(blocks)


def test_cores_threads_and_sockets_are_told_apart(tmp_path: Path) -> None:
    places = [(0, 0), (0, 1), (1, 0), (1, 1)] * 2
    root = lay_out(
        tmp_path,
        {
            "proc/cpuinfo": cpuinfo(places, "fpu avx2 fma avx512f avx512_bf16 amx_int8"),
            "proc/self/status": "Name:\tpython\nCpus_allowed:\t2d\nCpus_allowed_list:\t0,2-3,5\n",
        },
    )
    cpu = probe_cpu(root)
    assert (cpu.model, cpu.num_sockets, cpu.num_cores, cpu.num_threads) == ("Some CPU", 2, 4, 8)
    assert cpu.num_usable_threads == 4
    assert cpu.flags == ("avx2", "fma", "avx512f", "avx512_bf16", "amx_int8")
    assert low_precision_flags(root / "proc/cpuinfo") == ["amx_int8", "avx512_bf16"]


def test_a_processor_without_topology_or_flags_is_still_counted(tmp_path: Path) -> None:
    root = lay_out(tmp_path, {"proc/cpuinfo": "processor\t: 0\nFeatures\t: fp asimd\n\nprocessor\t: 1\n"})
    cpu = probe_cpu(root)
    assert (cpu.model, cpu.num_sockets, cpu.num_cores, cpu.num_threads) == (None, None, None, 2)
    assert (cpu.num_usable_threads, cpu.flags) == (2, ())


def test_numa_nodes_come_by_number(tmp_path: Path) -> None:
    files = {}
    for index in (0, 1, 10):
        files[f"sys/devices/system/node/node{index}/cpulist"] = f"{index}-{index + 1}\n"
        files[f"sys/devices/system/node/node{index}/meminfo"] = f"Node {index} MemTotal:    {index + 1} kB\n"
    nodes = numa_nodes(lay_out(tmp_path, files))
    assert [node.index for node in nodes] == [0, 1, 10]
    assert nodes[2] == NumaNode(index=10, cpus="10-11", memory_total_bytes=11264)


def test_ulimits_are_read_with_their_usual_names() -> None:
    text = (
        "Limit                     Soft Limit           Hard Limit           Units\n"
        "Max stack size            8388608              unlimited            bytes\n"
        "Max core file size        0                    unlimited            bytes\n"
        "Max open files            1024                 524288               files\n"
        "Max locked memory         unlimited            unlimited            bytes\n"
    )
    assert read_ulimits(text) == [
        Ulimit(name="stack", soft=8388608, hard=None),
        Ulimit(name="core", soft=0, hard=None),
        Ulimit(name="nofile", soft=1024, hard=524288),
        Ulimit(name="memlock", soft=None, hard=None),
    ]


@pytest.mark.parametrize(
    ("files", "environ", "kind"),
    [
        ({}, {}, None),
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": ""}, {}, "podman"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({".singularity.d/env/10.sh": ""}, {}, "apptainer"),
        ({"run/systemd/container": "systemd-nspawn\n"}, {}, "systemd-nspawn"),
        ({"proc/self/cgroup": "5:memory:/docker/0123abcd\n"}, {}, "docker"),
        ({"proc/self/cgroup": "0::/kubepods/burstable/pod1\n"}, {}, "kubernetes"),
        ({"proc/self/cgroup": "0::/slurm/uid_1000/job_7\n"}, {}, None),
        ({"proc/self/cgroup": "0::/user.slice/session-1.scope\n"}, {}, None),
    ],
)
def test_a_container_is_known_by_what_it_leaves(
    files: dict[str, str], environ: dict[str, str], kind: str | None, tmp_path: Path
) -> None:
    assert find_container(lay_out(tmp_path, files), environ) == kind


def docker_info(**changes: Any) -> bytes:
    return json.dumps(
        {"ServerVersion": "", "Runtimes": None, "ClientInfo": {"Version": "28.2.2"}, **changes}
    ).encode()


def test_docker_with_the_nvidia_runtime_can_start_gpu_containers() -> None:
    problems: list[Problem] = []
    told = docker_info(ServerVersion="28.1.1", Runtimes={"runc": {}, "nvidia": {}})
    docker = read_docker_info(told, "", problems)
    assert (docker.client_version, docker.server_version, docker.has_nvidia_runtime) == (
        "28.2.2",
        "28.1.1",
        True,
    )
    assert not problems


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", "missing"),
        ("permission denied while trying to connect to the Docker daemon socket", "no_permission"),
        ("", "missing"),
    ],
)
def test_a_client_without_a_server_says_why(error: str, kind: str) -> None:
    problems: list[Problem] = []
    docker = read_docker_info(docker_info(), error, problems)
    assert (docker.client_version, docker.server_version, docker.has_nvidia_runtime) == (
        "28.2.2",
        None,
        False,
    )
    assert problems == [Problem(what="docker server", why=error or "no answer", kind=kind)]


@pytest.mark.parametrize(
    ("script", "what"),
    [
        (None, "docker: no such command on the PATH"),
        ("#!/bin/sh\necho not json; echo 'old client' >&2; exit 1\n", "old client"),
        ("not executable by any system\n", "docker: "),
    ],
)
def test_a_docker_command_that_does_not_work_is_a_problem_not_an_error(
    script: str | None, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if script:
        (tmp_path / "docker").write_text(script)
        (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    problems: list[Problem] = []
    docker = probe_docker(problems)
    assert (docker.client_version, docker.runtimes) == (None, ())
    assert problems[0].why.startswith(what)


MOUNTINFO = r"""
22 27 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw
23 22 0:40 / /mnt/two\040words rw - nfs4 server:/export rw,vers=4.2
24 22 259:1 / /data rw master:3 propagate_from:2 - xfs /dev/nvme0n1p1 rw
25 24 0:50 /sub /data/fast rw - btrfs /dev/sdb1 rw
26 24 0:51 / /data/fast rw - tmpfs tmpfs rw
""".lstrip()


@pytest.mark.parametrize(
    ("path", "point", "file_system"),
    [
        ("/", "/", "ext4"),
        ("/opt/x", "/", "ext4"),
        ("/mnt/two words/models", "/mnt/two words", "nfs4"),
        ("/data", "/data", "xfs"),
        ("/database", "/", "ext4"),
        ("/data/fast/x", "/data/fast", "tmpfs"),  # the later mount covers the earlier
    ],
)
def test_a_path_is_on_the_deepest_mount_that_holds_it(path: str, point: str, file_system: str) -> None:
    mount = mount_of(path, read_mounts(MOUNTINFO))
    assert mount
    assert (mount.point, mount.file_system) == (point, file_system)
    assert mount_of(path, []) is None


@pytest.mark.parametrize(
    ("line", "kinds", "is_rotational"),
    [
        ("1 0 8:2 / / rw - ext4 /dev/sda2 rw", (False, False), True),
        ("1 0 259:0 / / rw - xfs /dev/nvme0n1 rw", (False, False), False),
        ("1 0 254:0 / / rw - ext4 /dev/vda rw", (False, False), None),  # virtual: its 1 says nothing
        ("1 0 0:44 / / rw - btrfs /dev/nvme0n1 rw", (False, False), False),
        ("1 0 0:45 / / rw - nfs4 server:/export rw", (True, False), None),
        ("1 0 0:46 / / rw - tmpfs tmpfs rw", (False, True), None),
    ],
)
def test_a_disk_tells_its_kind(
    line: str, kinds: tuple[bool, bool], is_rotational: bool | None, tmp_path: Path
) -> None:
    root = lay_out(
        tmp_path / "root",
        {
            "proc/self/mountinfo": line + "\n",
            "sys/devices/pci0/ata1/block/sda/queue/rotational": "1\n",
            "sys/devices/pci0/ata1/block/sda/sda2/size": "1\n",
            "sys/devices/pci0/nvme/nvme0n1/queue/rotational": "0\n",
            "sys/devices/pci0/virtio1/block/vda/queue/rotational": "1\n",
        },
    )
    for link, target in {
        "dev/block/8:2": "devices/pci0/ata1/block/sda/sda2",
        "dev/block/259:0": "devices/pci0/nvme/nvme0n1",
        "dev/block/254:0": "devices/pci0/virtio1/block/vda",
        "class/block/nvme0n1": "devices/pci0/nvme/nvme0n1",
    }.items():
        (root / "sys" / link).parent.mkdir(parents=True, exist_ok=True)
        (root / "sys" / link).symlink_to(root / "sys" / target)
    disk = probe_disk(tmp_path / "models/not/yet", root=root, problems=[])
    assert disk
    assert (disk.is_network, disk.is_memory) == kinds
    assert disk.is_rotational is is_rotational
    assert 0 < disk.free_bytes <= disk.total_bytes
    assert disk.is_writable


def test_a_disk_that_no_mount_holds_is_a_problem(tmp_path: Path) -> None:
    problems: list[Problem] = []
    assert probe_disk(tmp_path, root=tmp_path, problems=problems) is None
    assert problems == [Problem(what=f"disk of {tmp_path}", why="no mount holds it", kind="missing")]


def test_writing_is_measured_and_leaves_nothing(tmp_path: Path) -> None:
    assert measure_write_speed(tmp_path, 3_000_001) > 0
    assert not list(tmp_path.iterdir())
    with pytest.raises(HardwareError, match="expected 2000000000000000000 to measure"):
        measure_write_speed(tmp_path, 10**18)
    with pytest.raises(HardwareError, match="missing: cannot be written: No such file"):
        measure_write_speed(tmp_path / "missing")


def test_a_port_is_free_until_somebody_listens() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert not is_port_free(port)
    assert is_port_free(port)


def test_an_nvidia_gpu_is_seen_on_the_bus_without_a_driver(tmp_path: Path) -> None:
    devices = {
        "0000:00:02.0": ("0x8086", "0x030000"),
        "0000:19:00.0": ("0x10de", "0x030200"),
        "0000:01:00.0": ("0x10de", "0x030000"),
        "0000:01:00.1": ("0x10de", "0x040300"),  # the card's sound
    }
    files = {}
    for address, (vendor, kind) in devices.items():
        files[f"sys/bus/pci/devices/{address}/vendor"] = vendor + "\n"
        files[f"sys/bus/pci/devices/{address}/class"] = kind + "\n"
    assert nvidia_pci_devices(lay_out(tmp_path, files)) == ["0000:01:00.0", "0000:19:00.0"]


@pytest.mark.parametrize(("status", "is_synchronised"), [(0x40, False), (0x2001, True), (0x41, False)])
def test_the_clock_is_synchronised_when_the_kernel_says_so(status: int, is_synchronised: bool) -> None:
    def adjtimex(timex: Any) -> int:
        # where the C library's headers have the field: after an int and four longs
        ctypes.c_int.from_buffer(timex, 5 * ctypes.sizeof(ctypes.c_long)).value = status
        return 5

    assert is_clock_synchronised([], adjtimex) is is_synchronised


def test_a_clock_that_may_not_be_asked_is_a_problem() -> None:
    problems: list[Problem] = []
    assert is_clock_synchronised(problems, lambda timex: -1) is None
    assert [(problem.what, problem.kind) for problem in problems] == [("clock", "no_permission")]


def test_this_machine_can_be_read_whole(tmp_path: Path) -> None:
    host = probe_host([tmp_path], [0])
    assert host.kernel == os.uname().release
    assert host.cpu.num_usable_threads == len(os.sched_getaffinity(0))
    assert host.memory.available_bytes <= host.memory.usable_bytes
    assert host.shared_memory
    assert host.shared_memory.is_memory
    assert {limit.name for limit in host.ulimits} == {"nofile", "memlock", "stack", "core", "nproc"}
    (disk,) = host.disks
    assert disk.is_writable
    assert host.ports[0].is_free
    assert type(host).model_validate_json(host.model_dump_json()) == host


def test_a_machine_that_tells_nothing_is_still_reported(tmp_path: Path) -> None:
    host = probe_host([], [], root=tmp_path)
    assert (host.distribution, host.container, host.shared_memory) == (None, None, None)
    assert (host.memory.total_bytes, host.numa_nodes, host.ulimits) == (0, (), ())


def test_a_file_in_the_place_of_a_folder_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    for path in (tmp_path / "home", tmp_path / "home" / "below"):
        disk = probe_disk(path, root=Path("/"), problems=[])
        assert disk is not None
        assert not disk.is_writable
