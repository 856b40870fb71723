"""Abilities of this machine, and the cost of each missing one: the findings of `luwu doctor`."""

from __future__ import annotations

import errno
import importlib
import mmap
import os
import platform
import resource
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from luwu.core.units import memory_text
from luwu.core.words import counted
from luwu.launch.processes import worker_allocator

DIRECT_BYTES = 4096
"""The smallest direct write that every common disk takes."""

PAGE_LOCKED = (
    "a part of --memory, for copies to and from GPUs: the window and the memory for gradients; luwu plan says how much"
)

PROC = Path("/proc")
SYS = Path("/sys")


@dataclass(frozen=True)
class Finding:
    """A row: the thing examined, the finding, True if it is as good as it gets, and otherwise what that costs."""

    name: str
    found: str
    good: bool = True
    cost: str = ""

    def __post_init__(self) -> None:
        if self.good:
            object.__setattr__(self, "cost", "")  # frozen only from here on


def examine(folder: Path) -> list[Finding]:
    """Look at the machine and at the disk below `folder`, which need not exist yet."""
    existing = nearest_existing(folder)
    return [
        _processor(),
        _memory(),
        *_native(),
        _direct_io(existing),
        _huge_pages(),
        _shared_huge_pages(),
        _locked_memory(),
        _allocator(),
        *_torch(),
    ]


def nearest_existing(folder: Path) -> Path:
    """The folder, or the closest one above it that exists."""
    folder = folder.expanduser().absolute()
    while not folder.is_dir():
        folder = folder.parent
    return folder


def direct_io_error(folder: Path) -> int:
    """Zero if a file in `folder` takes a write past the page cache, otherwise the errno of the refusal."""
    with mmap.mmap(-1, DIRECT_BYTES) as buffer:
        try:
            handle, name = tempfile.mkstemp(prefix=".luwu-doctor-", dir=folder)
        except OSError as error:
            return error.errno or errno.EIO
        os.close(handle)
        try:
            handle = os.open(name, os.O_RDWR | os.O_DIRECT)
            try:
                os.pwrite(handle, buffer, 0)
            finally:
                os.close(handle)
        except OSError as error:
            return error.errno or errno.EIO
        finally:
            Path(name).unlink()
    return 0


def _processor() -> Finding:
    cores = len(os.sched_getaffinity(0))
    return Finding(
        "processor",
        f"{processor_name()}, {cores} {'core' if cores == 1 else 'cores'}, Linux {platform.release()}",
        cores > 1,
        "one core: server and workers take turns, so no communication is hidden behind compute",
    )


def memory_bytes() -> tuple[int, int]:
    """Return the machine's memory in bytes, and the bytes that new processes could have.

    0 if the kernel does not say.
    """
    values = {
        name: int(rest.split()[0]) * 1024
        for name, _, rest in (line.partition(":") for line in _read(PROC / "meminfo").splitlines())
        if rest.strip()
    }
    return values.get("MemTotal", 0), values.get("MemAvailable", 0)


def processor_name() -> str:
    """The processor's name, or its architecture."""
    names = [line for line in _read(PROC / "cpuinfo").splitlines() if line.startswith("model name")]
    return names[0].partition(":")[2].strip() if names else platform.machine()


def _memory() -> Finding:
    total, available = memory_bytes()
    return Finding(
        "memory",
        f"{memory_text(total)}, {memory_text(available)} available",
        available >= 8 * 2**30,
        "less than the default budget of 8GiB is free: set --memory lower; large stores are read from disk more often",
    )


def _native() -> list[Finding]:
    try:
        native = importlib.import_module("luwu.core.native")
    except ImportError as error:
        return [
            Finding("native core", f"cannot be loaded: {error}", False, "nothing runs without it: install luwu again")
        ]
    instructions, backend, built_in = native.instruction_set(), native.io_backend(), native.io_uring_built_in()
    return [
        Finding(
            "instruction set",
            instructions,
            instructions not in ("sse2", "base"),
            "the optimizer processes fewer numbers at a time; it may become slower than memory",
        ),
        Finding(
            "liburing",
            "built in" if built_in else "not built in",
            built_in,
            "disk access goes through a thread pool: install liburing-dev and build luwu again for io_uring",
        ),
        _numa(native.numa_processors()),
        Finding(
            "disk access",
            backend,
            backend == "io_uring",
            "a thread for each request in flight: more processor time for stores larger than the memory budget"
            + (_uring_switch() if built_in else ""),
        ),
        Finding(
            "XDP switch",
            native.xdp_missing() or "built in",
            not native.xdp_missing(),
            "luwu switch adds up in user space, with more processor time for each packet",
        ),
    ]


def _uring_switch() -> str:
    """Return the reason why the kernel may refuse an io_uring that is built in."""
    disabled = _read(PROC / "sys/kernel/io_uring_disabled").strip()
    return f"; the kernel's io_uring_disabled is {disabled}" if disabled not in ("", "0") else ""


def _direct_io(folder: Path) -> Finding:
    refusal = direct_io_error(folder)
    return Finding(
        "O_DIRECT",
        f"works in {folder}" if not refusal else f"refused in {folder}: {os.strerror(refusal)}",
        not refusal,
        "the store goes through the page cache: a second copy in memory that the budget does not cover; "
        "put --store on a disk with ext4 or xfs",
    )


def _numa(nodes: list[list[int]]) -> Finding:
    shares = ", ".join(counted(len(processors), "processor") for processors in nodes)
    return Finding("NUMA nodes", f"{len(nodes)} ({shares})", True, "")


def _huge_pages() -> Finding:
    setting = _read(SYS / "kernel/mm/transparent_hugepage/enabled")
    chosen = _chosen(setting)
    return Finding(
        "huge pages",
        f"transparent: {chosen}",
        chosen in ("always", "madvise"),
        "large buffers take more page table walks: some per cent of the optimizer's speed",
    )


def _shared_huge_pages() -> Finding:
    setting = SYS / "kernel/mm/transparent_hugepage/shmem_enabled"
    chosen = _chosen(_read(setting))
    return Finding(
        "huge pages of shared memory",
        chosen,
        chosen in ("always", "within_size", "advise", "force"),
        "parameters are read from the disk more slowly (measured out of core: 1.5 instead of 2.8 GB/s, a step 1.16 "
        f"times as long), and memory for copies to and from GPUs is locked in small pages: echo advise > {setting}",
    )


def _locked_memory() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    unlimited = soft == resource.RLIM_INFINITY
    return Finding(
        "RLIMIT_MEMLOCK",
        "unlimited" if unlimited else memory_text(soft),
        unlimited or soft >= 8 * 2**20 or os.geteuid() == 0,
        "kernels before 5.12 count io_uring queues against it and may refuse them: raise it with ulimit -l",
    )


def _allocator() -> Finding:
    library = worker_allocator()
    return Finding(
        "allocator",
        library or "the C library's",
        library is not None,
        "workers take some per cent more memory as models get deeper, and more time: install libtcmalloc-minimal4",
    )


def _torch() -> list[Finding]:
    if find_spec("torch") is None:
        return [Finding("torch", "not installed", False, "this machine can be a server but not a worker")]
    import torch

    devices = [_device(index) for index in range(torch.cuda.device_count())]
    products = bfloat16_products()
    return [
        Finding("torch", str(torch.__version__)),
        Finding(
            "CUDA devices",
            "; ".join(devices) or "none",
            bool(devices),
            "workers compute on the processor",
        ),
        *([Finding("page-locked memory", PAGE_LOCKED)] if devices else []),
        Finding(
            "bfloat16 on the processor",
            "matrix products" if products else "no matrix products",
            products or bool(devices),
            "torch multiplies number by number, ten to a hundred times slower: train with --dtype float32",
        ),
    ]


def _device(index: int) -> str:
    import torch

    free, total = torch.cuda.mem_get_info(index)
    return f"{torch.cuda.get_device_name(index)}, {memory_text(free)} of {memory_text(total)} free"


def bfloat16_products() -> bool:
    """Return True if torch multiplies bfloat16 matrices here with vector instructions (AVX-512 and later)."""
    import torch

    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return supported is None or bool(supported())


def _chosen(setting: str) -> str:
    """The choice that the kernel shows in brackets."""
    return setting.partition("[")[2].partition("]")[0] or "not in this kernel"


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
