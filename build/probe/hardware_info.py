"""What a machine is, as far as it could be read: the records that the probes fill and the checks read.

A field that a machine, a driver or a container may keep to itself is None; `problems` then says why.
"""

from __future__ import annotations

from typing import Literal

from trtb.build.manifest import Record

ProblemKind = Literal[
    "missing",  # there is no such thing here: no driver, no command, no file
    "not_supported",  # this GPU or this kernel does not have it
    "no_permission",  # it is there and not for us to read
    "version_mismatch",  # the driver's library and its kernel module are of different versions
    "lost",  # the GPU has fallen off the bus
    "timeout",  # the driver did not answer
    "failed",  # anything else
]


class Problem(Record):
    """One thing that could not be read."""

    what: str  # "GPU 0: serial", "NVML", "docker"
    why: str
    kind: ProblemKind


class GpuProcess(Record):
    """A process with memory on a GPU, of whatever user or container."""

    pid: int  # as the driver counts; in a container it may be nobody's
    used_bytes: int | None


class MigDevice(Record):
    """One slice of a GPU in MIG mode: a device of its own for CUDA."""

    index: int
    name: str | None
    uuid: str | None  # "MIG-…", what CUDA_VISIBLE_DEVICES takes
    gpu_instance_id: int | None
    compute_instance_id: int | None
    num_multiprocessors: int | None
    memory_total_bytes: int | None
    memory_free_bytes: int | None


class Clocks(Record):
    """Clock rates in MHz; an idle GPU clocks down."""

    sm_mhz: int | None
    sm_max_mhz: int | None
    memory_mhz: int | None
    memory_max_mhz: int | None


class PcieLink(Record):
    """The link to the host; an idle GPU lowers its generation, never its width."""

    generation: int | None
    generation_max: int | None
    width: int | None
    width_max: int | None


class GpuInfo(Record):
    """One GPU, as NVML counts them (CUDA_VISIBLE_DEVICES does not change that)."""

    index: int
    name: str | None
    uuid: str | None
    serial: str | None
    pci_bus_id: str | None
    compute_capability: str | None  # "9.0"
    memory_total_bytes: int | None
    memory_free_bytes: int | None
    mig_mode: Literal["enabled", "disabled"] | None  # None: this GPU has no MIG
    mig_devices: tuple[MigDevice, ...]
    ecc_mode: Literal["enabled", "disabled"] | None
    ecc_uncorrected_errors: int | None  # since the driver was loaded
    ecc_uncorrected_lifetime: int | None
    row_remap_pending: bool | None  # a broken memory row is replaced at the next reset
    row_remap_failed: bool | None  # no spare row was left: the GPU is to be replaced
    compute_mode: Literal["default", "exclusive_process", "prohibited"] | None
    persistence: Literal["enabled", "disabled"] | None
    power_limit_w: float | None  # in force
    power_default_limit_w: float | None
    power_draw_w: float | None
    clocks: Clocks
    throttle_reasons: tuple[str, ...] | None  # "thermal", "power_cap"...; idle counts as none
    temperature_c: int | None
    temperature_slowdown_c: int | None  # where the GPU begins to slow itself down
    pcie: PcieLink
    nvlink_active_links: int | None
    fabric_state: Literal["not_supported", "not_started", "in_progress", "completed"] | None  # NVSwitch
    processes: tuple[GpuProcess, ...] | None
    vbios: str | None

    @property
    def sm(self) -> int | None:
        """Return the compute capability as one number, 90 for "9.0"."""
        return None if self.compute_capability is None else int(self.compute_capability.replace(".", ""))


class PeerLink(Record):
    """How two GPUs reach each other; both directions are alike."""

    first: int
    second: int
    can_peer: bool | None  # read each other's memory directly
    peer_status: str | None  # "ok", or why not
    has_nvlink: bool | None
    path: str | None  # "pcie_switch", "host_bridge", "numa_node", "system"...: the nearest common ancestor


class DriverInfo(Record):
    """The NVIDIA driver; all None where there is none."""

    driver_version: str | None  # "580.95.05"
    cuda_version: str | None  # the newest that the driver supports, "13.0"
    nvml_version: str | None
    kernel_module_version: str | None  # of /proc/driver/nvidia/version

    @property
    def major(self) -> int | None:
        """Return the driver's branch, 580 for "580.95.05"."""
        return None if self.driver_version is None else int(self.driver_version.partition(".")[0])


class GpuReport(Record):
    """What the NVIDIA driver told."""

    driver: DriverInfo
    num_gpus: int | None  # as the driver counts; more than len(gpus) where some could not be read
    gpus: tuple[GpuInfo, ...]
    peers: tuple[PeerLink, ...]  # one for each pair of GPUs
    problems: tuple[Problem, ...]


class CpuInfo(Record):
    """The processor, and how much of it is ours."""

    model: str | None
    num_sockets: int | None
    num_cores: int | None  # physical
    num_threads: int  # logical, online
    num_usable_threads: int  # that our affinity and cpuset leave
    quota_cpus: float | None  # CPU-seconds per second that a control group allows; None: no limit
    flags: tuple[str, ...]  # those of cpu_flags.CPU_FLAGS that it has


class NumaNode(Record):
    """One memory node."""

    index: int
    cpus: str  # "0-15,32-47"
    memory_total_bytes: int | None


class MemoryInfo(Record):
    """The host's memory."""

    total_bytes: int
    available_bytes: int  # without swapping, within every limit above us
    limit_bytes: int | None  # the least of the control groups above us; None: no limit
    swap_total_bytes: int
    swap_free_bytes: int

    @property
    def usable_bytes(self) -> int:
        """Return what this process could have if nothing else ran."""
        return self.total_bytes if self.limit_bytes is None else min(self.total_bytes, self.limit_bytes)


class DiskInfo(Record):
    """The file system that a path is on, or would be on."""

    path: str  # as asked for
    mount_point: str
    file_system: str  # "ext4", "nfs4", "overlay"...
    device: str
    is_network: bool
    is_memory: bool  # tmpfs: what is written there is taken from the memory
    is_rotational: bool | None  # None: no disk of its own, or a disk that does not say
    is_writable: bool  # by us
    total_bytes: int
    free_bytes: int  # for a user who is not root
    free_inodes: int | None  # None: the file system does not count


class Ulimit(Record):
    """One resource limit of this process; None is unlimited."""

    name: str  # "nofile", "memlock", "stack", "core", "nproc"
    soft: int | None
    hard: int | None


class DockerInfo(Record):
    """The container engine's client and server on this machine."""

    client_version: str | None  # None: no client
    server_version: str | None  # None: no server answers
    runtimes: tuple[str, ...]  # as the server lists them

    @property
    def has_nvidia_runtime(self) -> bool:
        """Return whether containers can be given GPUs."""
        return "nvidia" in self.runtimes


class PortInfo(Record):
    """Whether a TCP port of the loopback address is free."""

    port: int
    is_free: bool


class HostInfo(Record):
    """The machine around the GPUs."""

    architecture: str  # "x86_64"
    kernel: str
    distribution: str | None  # "Debian GNU/Linux 12 (bookworm)"
    libc: str | None  # "glibc 2.36"
    container: str | None  # "docker", "podman", "kubernetes", "lxc"...; None: not in one
    cpu: CpuInfo
    numa_nodes: tuple[NumaNode, ...]
    memory: MemoryInfo
    shared_memory: DiskInfo | None  # /dev/shm
    disks: tuple[DiskInfo, ...]  # one for each path asked for
    ulimits: tuple[Ulimit, ...]
    docker: DockerInfo
    is_clock_synchronised: bool | None
    ports: tuple[PortInfo, ...]  # those asked for
    nvidia_pci_devices: tuple[str, ...]  # bus ids of NVIDIA GPUs on the bus, with or without a driver
    cuda_visible_devices: str | None  # the variable, where it is set
    problems: tuple[Problem, ...]


class HardwareInfo(Record):
    """The whole machine at one moment."""

    driver: DriverInfo
    num_gpus: int | None
    gpus: tuple[GpuInfo, ...]
    peers: tuple[PeerLink, ...]
    host: HostInfo
    problems: tuple[Problem, ...]  # of the driver, then of the host
