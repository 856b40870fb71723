"""Does every block of code in README and docs run, and is the site built without a warning or a dead link?

Blocks run as `harness.pages` has it: in a folder with a small model and a little text, with small sizes. A block that
cannot run here says why in a comment before it. `tests/integration/test_docs_code.py` runs those that are quick.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kit.common import ROOT, NotInstalledError, Row, arguments, result, run, table

from harness.pages.blocks import CHECKED, SHOWN, all_blocks
from harness.pages.running import run_blocks
from harness.warm import ADDRESS, LUWU_MODULES, serve_warm

NAME = "docs_run"
BAR = "every code block that can run was run; 0 warnings; 0 dead links"
UNIT = "blocks that failed, warnings and dead links"
CHECKED_PAGES = ("docs/commit-points.md",)
"""Pages whose blocks run with --check: both kinds of blocks, without transformers, whose import takes seconds."""


def build_site() -> tuple[list[str], list[str]]:
    """Build the site; return its warnings and its dead links. Raises NotInstalledError without Sphinx."""
    if importlib.util.find_spec("sphinx") is None:
        raise NotInstalledError("the site needs Sphinx: make docs")
    command = [sys.executable, ROOT / "tools" / "site" / "build.py"]
    built = subprocess.run(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, check=False)
    said = [line for line in built.stderr.splitlines() if line.strip()]
    dead = [line for line in said if "[dead link]" in line or "[myst.xref" in line]
    warnings = [line for line in said if line not in dead and ("WARNING" in line or "ERROR" in line)]
    if built.returncode and not dead and not warnings:
        warnings = said[-3:]
    return warnings, dead


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    yield (
        f"{found['blocks']} blocks of code in README and docs",
        f"{found['run'] - len(found['failed'])} run; {found['read']} files read; {sum(found['excused'].values())} say "
        f"why not; {len(found['failed'])} fail",
        "0 fail",
    )
    yield "the site's warnings and dead links", f"{len(found['warnings'])}; {len(found['dead_links'])}", "0; 0"


def main() -> int:
    """Run the blocks, build the site, and print a table."""
    options = arguments(__doc__ or NAME)

    def measure() -> dict[str, Any]:
        every = [block for block in all_blocks(ROOT) if block.language not in SHOWN]
        runnable = [block for block in every if block.runs]
        pages = options.size(None, check=CHECKED_PAGES)
        chosen = [block for block in runnable if pages is None or block.page in pages]
        with tempfile.TemporaryDirectory(dir=options.folder) as scratch, serve_warm(LUWU_MODULES) as address:
            os.environ.setdefault(ADDRESS, address)
            failed = run_blocks(chosen, Path(scratch))
        warnings, dead = ([], []) if options.check else build_site()  # `make docs` builds it beside the checks
        excused = Counter(block.reason for block in every if block.reason)
        table(["why a block does not run", "blocks"], sorted(excused.items()))
        for name, error in failed.items():
            sys.stderr.write(f"{name}: {error}\n")
        found = len(failed) + len(warnings) + len(dead)
        return result(
            NAME, ours=found, peer=None, bar=BAR, ok=not found, right=not failed, unit=UNIT,
            details={
                "blocks": len(every), "run": len(chosen), "excused": dict(excused), "failed": failed,
                "read": sum(block.language in CHECKED for block in every), "warnings": warnings, "dead_links": dead,
            },
        )  # fmt: skip

    return run(NAME, BAR, UNIT, measure, options)


if __name__ == "__main__":
    sys.exit(main())
