"""luwu's side of a comparison: a server process and the workers that joined it, as `luwu train` has them."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kit.common import BenchmarkError, Options
from kit.processes import Side


def disk_bytes(folder: Path) -> int:
    """Return the bytes of a folder on the disk; a file of several names counts once."""
    stats = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return sum({stat.st_ino: stat.st_blocks * 512 for stat in stats}.values())


def in_checkout(checkout: Path) -> dict[str, Path]:
    """Return the arguments of a `Side` that runs the programs of a checkout with the Python of its .venv."""
    return {"python": checkout / ".venv" / "bin" / "python", "programs": checkout / "benchmarks"}


def small_run(options: Options, steps: int) -> dict[str, Any]:
    """Return the settings of a run whose step is short, so that what is done beside it shows; ``steps`` a sample."""
    layers, hidden = options.size((4, 256), check=(1, 32))
    return {
        "shape": {"layers": layers, "hidden": hidden, "heads": 4, "seq": 64}, "rows": 2,
        "steps": options.effort(steps, check=2), "folder": str(options.folder), "memory": "256MiB", "checkpoint": False,
    }  # fmt: skip


class LuwuSide(Side):
    """Workers run `program` (ours/train.py unless told otherwise) with `settings` and "run", a new run folder.

    "folder" of the settings says where run folders go; "memory" is the server's budget (1GiB unless given). `checkout`
    is another LuWu, with programs and an environment of its own.
    """

    def __init__(
        self, settings: Mapping[str, Any], *, ranks: int = 1, program: str = "ours/train.py",
        server: str = "ours/server.py", threads: int | None = None, checkout: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        if importlib.util.find_spec("luwu") is None:
            raise BenchmarkError(f"luwu is not installed in {sys.prefix}: run pip install -e .")
        self._run = tempfile.TemporaryDirectory(dir=settings["folder"], prefix="luwu-")
        wanted = {"memory": "1GiB", **settings, "run": self._run.name, "workers": ranks}
        where = in_checkout(checkout) if checkout is not None else {}
        super().__init__("luwu", program, wanted, ranks=ranks, server=server, threads=threads, env=env, **where)

    def step_seconds(self) -> float:
        """Take a sample, and return its seconds a step, of the slowest worker."""
        return max(float(worker["seconds"]) for worker in self.sample())

    @property
    def worker_bytes(self) -> int:
        """Peak memory of the largest worker."""
        return max(self.memory.each_bytes[: self.ranks])

    @property
    def server_bytes(self) -> int:
        """Peak memory of the server."""
        return self.memory.each_bytes[-1]

    @property
    def store_bytes(self) -> int:
        """Bytes of the run folder on the disk; a file of several names counts once."""
        return disk_bytes(self.store)

    @property
    def run_folder(self) -> Path:
        """The run folder."""
        return Path(self._run.name)

    @property
    def store(self) -> Path:
        """The folder of the store."""
        return self.run_folder / "store"

    def close(self) -> None:
        """Ends the processes and removes the run folder."""
        super().close()
        self._run.cleanup()
