"""The copy engine with one of its waits or events removed: each in turn is compiled, and the native tests must notice.

A removal is a piece of `native/device/engine.cc` and what stands there instead. Every line that is marked ``order:``
has one, so a wait that is added without a removal is noticed, too.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kit.removals import ROOT, RemovalError, after, compile_commands, link_command, require_once, run

ENGINE = ROOT / "native/device/engine.cc"
_MARK = "// order:"
_SECONDS = 120


@dataclass(frozen=True)
class Removal:
    """A piece of code, ``old``, which stands in the engine once, and the code without it."""

    name: str
    old: str
    new: str


def _call_at_once(stream: str, start: str) -> Removal:
    name = "given back" if stream == "in_" else "pushed"
    return Removal(
        f"a block is {name} before its copy has ended",
        f"call_after({stream}.get(), [{start}] {{",
        f"run_now([{start}] {{",
    )


REMOVALS = (
    Removal("compute reads a block before its copy", "    buffer.filled.hold_back(compute);", ""),
    Removal("a block is not noted as read", "        buffer.free.record(compute);", ""),
    Removal("compute writes a gradient before the last copy out", "    buffer->free.hold_back(compute);", ""),
    Removal("a gradient is not noted as written", "    buffer.filled.record(compute);", ""),
    Removal("a buffer is filled before its last reader", "    buffer.free.hold_back(in_.get());", ""),
    Removal("a copy in is not noted", "    buffer.filled.record(in_.get());", ""),
    Removal("a gradient is copied before it is written", "    buffer.filled.hold_back(out_.get());", ""),
    Removal("a copy out is not noted", "    buffer.free.record(out_.get());", ""),
    Removal(
        "a place in the arena is written before its push was answered",
        "        if (!wait_for_plane(lock, *sent_.front().handle)) return nullptr;",
        "",
    ),
    Removal("memory is given back before copies have ended", "            end.wait();", ""),
    _call_at_once("in_", "this, block"),
    _call_at_once("out_", "this, &sent"),
)


def check_complete() -> None:
    """See that the engine has a removal for each wait, and none that is not there."""
    for removal in REMOVALS:
        require_once(removal.name, removal.old, ENGINE)
    marks = ENGINE.read_text().count(_MARK)
    if marks != len(REMOVALS):
        raise RemovalError(f"{ENGINE}: expected a removal for each of {marks} waits, found {len(REMOVALS)}")


def is_reported(removal: Removal, seeds: int) -> bool:
    """Return true when the tests of the device fail without the piece. The native tests have been built."""
    with tempfile.TemporaryDirectory() as folder:
        program = _build(removal, Path(folder))
        environment = {**os.environ, "LUWU_TEST_SEEDS": str(seeds)}
        try:
            ended = subprocess.run(
                [program, "--source-file=*/test_device.cc"], env=environment, cwd=folder, capture_output=True,
                timeout=_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return True
    return ended.returncode != 0


def _build(removal: Removal, folder: Path) -> Path:
    """Compile the engine without it, and link it before the library that has the whole one."""
    source, compiled, program = folder / "engine.cc", folder / "engine.o", folder / "tests"
    text = ENGINE.read_text().replace(removal.old, removal.new)
    if "run_now(" in removal.new:
        text = text.replace("void CopyEngine::copy_in(", _RUN_NOW + "\nvoid CopyEngine::copy_in(", 1)
    source.write_text(text)
    command = compile_commands(ENGINE)[0]
    replaced = {str(ENGINE): str(source), after(command, "-o"): str(compiled), "-Werror": "-w"}
    run([replaced.get(word, word) for word in command])
    link = link_command("tests/native/luwu_native_tests")
    replaced = {after(link, "-o"): str(program)}
    link = [replaced.get(word, word) for word in link]
    library = next(index for index, word in enumerate(link) if word.endswith("libluwu_core.a"))
    run([*link[:library], str(compiled), *link[library:]])
    return program


_RUN_NOW = "namespace { template <class Function> void run_now(const Function& function) { function(); } }"
