"""The page of `luwu watch` says numbers as the terminal does; run by node where that is installed."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import luwu

STATIC = Path(luwu.__file__).parent / "watch" / "static"


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_short_times_have_three_digits(tmp_path: Path) -> None:
    times = [0.0086, 0.25, 1.2345, 9.99, 12.4, 65]
    module = Path(shutil.copy(STATIC / "words.js", tmp_path / "words.mjs"))
    script = (
        f"import({json.dumps(module.as_uri())})"
        f".then((words) => console.log(JSON.stringify({times}.map(words.duration))))"
    )
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == ["0.0086 s", "0.25 s", "1.23 s", "9.99 s", "12 s", "1 min 5 s"]


def test_a_touch_screen_is_told_of_no_key() -> None:
    page = (STATIC / "index.html").read_text()
    [line] = [line for line in page.splitlines() if "Escape" in line]
    assert "by-mouse" in line
    assert "@media (hover: none) { .by-mouse { display: none; } }" in (STATIC / "style.css").read_text()
