"""luwu-export.json, beside what an export has written: the export is refused, or goes on and writes its file."""

from __future__ import annotations

from tests.fuzz.python.support import Input, allowing, edited, put, scratch

from luwu.errors import ConfigError, StorePermissionError
from luwu.store.outputs import JOURNAL_NAME, OutputFolder

ORIGIN = {"store": "one", "step": 3}
JOURNAL = {"origin": ORIGIN, "files": {"a": {"bytes": 3, "crc32c": 910901175, "notes": {"x": [1]}}}}
CONTENT = b"abc"


def test_one_input(data: bytes) -> None:
    folder = scratch()
    given = Input(data)
    how = given.number()
    put(folder / JOURNAL_NAME, edited(JOURNAL, given), how)
    (folder / "a").write_bytes(CONTENT)
    output = allowing((ConfigError, StorePermissionError), lambda: OutputFolder(folder, ORIGIN))
    if output is None:
        return
    if output.finished("a"):
        output.notes("a")
    with output.write("a") as file:
        file.write(CONTENT)
        file.notes = "whole"
    again = OutputFolder(folder, ORIGIN)
    assert again.finished("a") and again.notes("a") == "whole", "a file that was finished is found again"
    assert not again.finished("b"), "a file that was not written is not finished"
