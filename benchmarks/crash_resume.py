"""A server killed with SIGKILL at random moments, 50 times, and resumed: nothing committed is lost, no bit differs.

The server is embedded, so killing the process kills server and worker at once, while opening the store, training or
committing. Each resume must start at the last step that was committed, and the final parameters must equal those of a
run that nobody disturbed.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from common import BenchmarkError, arguments, result, run, table
from processes import HERE, environment

NAME = "crash_resume"
BAR = "every resume at the last committed step; final parameters bit for bit those of the undisturbed run"
LIFE_STEPS = 8  # a life is at most so long
OPENING_SECONDS = 0.5
OPENING_EVERY = 5  # every fifth kill hits the opening of the store instead
LIMIT_SECONDS = 120.0


class Life:
    """One start of the training process and what it said."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._log = Path(settings["run"] + ".log")
        with self._log.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "ours" / "crash.py"), json.dumps(settings)], env=environment(1),
                stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
            )  # fmt: skip
        self.resumed: int | None = None
        self.committed: int | None = None
        self.digest: str | None = None
        self.seconds = 0.0
        self._limit = threading.Timer(LIMIT_SECONDS, self._process.kill)
        self._limit.start()
        if not self._line():
            self.finish()

    def kill_after(self, seconds: float, *, training: bool) -> None:
        """Sends SIGKILL so long after training went on, or after the store began to be opened."""
        while training and self.resumed is None and (line := self._line()):
            self._take(line)
        time.sleep(seconds)
        self._process.kill()
        self._read()

    def finish(self) -> None:
        """Lets the process run to its end; raises BenchmarkError when it fails."""
        self._read()
        if self._process.returncode != 0:
            tail = self._log.read_text()[-2000:]
            raise BenchmarkError(f"the run ended with {self._process.returncode}:\n{tail}")

    def _line(self) -> str:
        return self._process.stdout.readline() if self._process.stdout else ""

    def _take(self, line: str) -> None:
        with contextlib.suppress(json.JSONDecodeError):  # the kill may cut the last line
            for name, value in json.loads(line).items():
                setattr(self, name, value)

    def _read(self) -> None:
        while line := self._line():
            self._take(line)
        self._process.wait()
        self._limit.cancel()


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    kills = options.size(50, quick=8, check=1)
    target = 3 * LIFE_STEPS * kills // 2
    settings = {
        "shape": {"layers": 4, "hidden": 128, "heads": 4, "seq": 64}, "rows": 2, "target": target, "memory": "64MiB",
    }  # fmt: skip
    moments = random.Random(7)

    def measure() -> dict[str, Any]:
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="luwu-") as folder:
            undisturbed = Life({**settings, "run": f"{folder}/undisturbed"})
            undisturbed.finish()
            life_seconds = LIFE_STEPS * undisturbed.seconds / target
            last, wrong, resumes = 0, [], []
            disturbed = {**settings, "run": f"{folder}/disturbed"}
            for number in range(kills):
                life = Life(disturbed)
                opening = number % OPENING_EVERY == OPENING_EVERY - 1
                life.kill_after(moments.uniform(0, OPENING_SECONDS if opening else life_seconds), training=not opening)
                if life.resumed is not None:
                    resumes.append(life.resumed)
                    # A step may have been committed in the moment between the commit and its announcement.
                    if life.resumed not in (last, last + 1):
                        wrong.append({"kill": number, "announced": last, "resumed": life.resumed})
                last = max(last, life.resumed or 0, life.committed or 0)
            final = Life(disturbed)
            final.finish()
        same = final.digest == undisturbed.digest and final.digest is not None
        table(
            ["kills", "starts that got to train", "wrong resumes", "step at the last kill", "same bits"],
            [[kills, len(resumes), len(wrong), last, same]],
        )
        details = {"kills": kills, "resumes": resumes, "wrong": wrong, "bit_identical": same}
        enough = len(resumes) >= kills // 2 and 0 < last < target
        return result(
            NAME, ours=kills - len(wrong), peer=kills, bar=BAR, ok=enough, right=same and not wrong,
            unit="kills survived", details=details,
        )  # fmt: skip

    return run(NAME, BAR, "kills survived", measure, options)


if __name__ == "__main__":
    sys.exit(main())
