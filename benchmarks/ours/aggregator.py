"""The server of fabric_local: sums one float32 block, no store and no optimizer. Settings: elements, workers, run.

Workers in other processes open its shared memory through /proc, told by a file in the run folder.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from kit.child import serve, settings, take_stdout

from luwu import _native_testing


def main() -> None:
    """Serves until told to stop."""
    replies = take_stdout()
    wanted = settings()
    threads = len(os.sched_getaffinity(0))
    aggregator = _native_testing.Aggregator(wanted["elements"], wanted["workers"], threads)
    files = [list(aggregator.files_of(rank)) for rank in range(wanted["workers"])]
    announcement = Path(wanted["run"]) / "aggregator.json"
    draft = announcement.with_suffix(".draft")
    draft.write_text(json.dumps({"pid": os.getpid(), "files": files}))
    draft.rename(announcement)
    serve(replies, dict)


if __name__ == "__main__":
    main()
