"""Writes a day's benchmark results as docs/figures.md, and the rows in `SELECTED` into the README, between its markers.

usage: python tools/figures.py benchmarks/results/DATE.json

Each benchmark in `SECTIONS` describes its rows itself: `rows` of its program makes them from the details of its result,
and `note`, where it has one, the text below them.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]
from kit.common import Row  # noqa: E402 - the benchmarks are programs, which find their kit beside them

README = ROOT / "README.md"
PAGE = ROOT / "docs" / "figures.md"
BEGIN, END = "<!-- figures: tools/figures.py -->", "<!-- end of figures -->"

SELECTED = (
    ("parity", "losses against plain torch"),
    ("crash_resume", ""),
    ("power_cuts", ""),
    ("worker_memory", "a worker's peak memory, 48 blocks"),
    ("train_vs_deepspeed", ""),
    ("train_vs_torch", "training, 1 worker, float32"),
    ("train_vs_torch", "training, 4 workers, float32"),
    ("optimizer_disk", ""),
)
"""The README's rows: a benchmark, and the beginning of the question of one of its rows."""

SECTIONS = {
    "The same results": (
        "parity",
        "parity_models",
        "parity_families",
        "network_parity",
        "xdp_parity",
        "interchange",
    ),
    "Nothing is lost": (
        "crash_resume",
        "durable_points",
        "standby",
        "elastic",
        "no_fault_cost",
        "goodput_under_failures",
        "engines",
        "power_cuts",
        "step_machine",
        "simulated_jobs",
        "fault_points",
        "rot",
        "network_faults",
        "strangers",
    ),
    "Training": (
        "train_vs_deepspeed",
        "train_vs_torch",
        "uneven",
        "worker_memory",
        "micro_batches",
        "lora",
        "streaming_memory",
    ),
    "The server": (
        "optimizer_memory",
        "optimizer_resident",
        "optimizer_disk",
        "disk_bytes",
        "step_tail",
        "state_8bit",
        "clipping",
        "trimmed_mean",
        "snapshots",
        "out_of_core",
    ),
    "Between processes": (
        "fabric_local",
        "network_goodput",
        "network_aggregate",
        "network_loss",
        "network_queues",
        "network_marks",
        "network_heartbeats",
        "network_servers",
        "xdp_packet",
        "xdp_goodput",
    ),
    "On a simulated GPU": ("device_twin", "device_schedule"),
    "Plans and displays": (
        "plan_paper",
        "plan_megatron",
        "plan_measured",
        "ten_billion",
        "display_truth",
        "watch_browser",
        "watch_cost",
        "explain_truth",
        "trace_cost",
    ),
    "Installing": ("first_use",),
    "The code": ("fuzz_coverage", "structure", "docs_run"),
}
"""The sections of docs/figures.md and their benchmarks."""

ABOUT = """# All figures

<!-- Written by tools/figures.py from a report in benchmarks/results. Change that, not this page. -->

Every figure comes from a program in [benchmarks](../benchmarks/README.md) that measures LuWu and its peer in one run.
Everything ran on CPUs: no figure here is a GPU's. Figures are medians. "Peer or limit" is the other system, or what the
bar of the program names."""

HEAD = ("| what | LuWu | peer or limit |", "|---|---|---|")


class Report:
    """A day's results: what was measured, where, and which bars were missed."""

    def __init__(self, path: Path) -> None:
        """Read the report at `path`, a JSON file of tools/bench.py."""
        report = json.loads(path.read_text())
        self.results = {result["name"]: result for result in report["results"]}
        self.place = path.resolve().relative_to(ROOT).with_suffix(".md")

    def machine(self) -> str:
        """Return the days and the machine, as the beginning of a sentence."""
        dates = sorted({result["machine"]["date"][:10] for result in self.results.values()})
        days = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
        abouts = [result["machine"] for result in self.results.values()]
        processors, cores, memories = (
            " or ".join(sorted(found))
            for found in (
                {about["processor"] for about in abouts},
                {f"{about['cores']} cores" for about in abouts},
                {f"{about['memory_bytes'] / 2**30:.0f} GiB" for about in abouts},
            )
        )
        return f"Measured on {days}: {processors}, {cores}, {memories}, a virtual disk"

    def bars(self) -> str:
        """Return the sentence that names the bars that were missed and those that are not decided."""
        missed, open_ = (
            ", ".join(f"`{name}`" for name, result in self.results.items() if result["ok"] is verdict)
            for verdict in (False, None)
        )
        return f"Bars that were missed: {missed or 'none'}." + (f" Not decided: {open_}." if open_ else "")

    def rows(self, name: str) -> list[Row]:
        """Return the rows of one benchmark; none if it was not run."""
        return list(_program(name).rows(self.results[name]["details"])) if name in self.results else []

    def note(self, name: str) -> str:
        """Return the text below the rows of one benchmark; empty if it has none or was not run."""
        describe = getattr(_program(name), "note", None) if name in self.results else None
        return describe(self.results[name]["details"]) if describe else ""


def _program(name: str) -> ModuleType:
    return importlib.import_module(f"benchmarks.{name}")


def page(report: Report) -> str:
    """Return docs/figures.md."""
    intro = f"{report.machine()} ([the whole report](../{report.place})). {report.bars()}"
    parts = [ABOUT, intro]
    for heading, names in SECTIONS.items():
        rows = [f"| {' | '.join(row)} |" for name in names for row in report.rows(name)]
        if rows:
            parts.append("\n".join([f"## {heading}", "", *HEAD, *rows]))
        parts += filter(None, map(report.note, names))
    return "\n\n".join(parts) + "\n"


def selection(report: Report) -> str:
    """Return the README's section: the rows of `SELECTED`, the missed bars and the links."""
    lines = [f"{report.machine()}; both sides in one run, medians. {report.bars()}", "", *HEAD]
    for name, beginning in SELECTED:
        rows = report.rows(name)
        found = [row for row in rows if row[0].startswith(beginning)]
        if rows and not found:
            raise SystemExit(
                f"SELECTED: {name} has no row that begins with {beginning!r}; it has {[row[0] for row in rows]}"
            )
        lines.extend(f"| {' | '.join(row)} |" for row in found)
    return "\n".join(lines)


def write_section(path: Path, begin: str, end: str, text: str) -> None:
    """Replace the text between two markers of a page."""
    before, _, rest = path.read_text().partition(begin)
    _, _, after = rest.partition(end)
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def main() -> None:
    """Write docs/figures.md, and the README's rows between the markers."""
    report = Report(Path(sys.argv[1]))
    PAGE.write_text(page(report))
    write_section(README, BEGIN, END, selection(report))


if __name__ == "__main__":
    main()
