"""Completion in bash, by the script that `luwu --show-completion` prints and `luwu --install-completion` installs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COMPLETE = """
eval "$(luwu --show-completion)"
complete -p luwu
COMP_WORDS=(luwu snapshot re) COMP_CWORD=2
_luwu_completion luwu
echo "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_a_command_and_nothing_is_written_at_home(tmp_path: Path) -> None:
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"HOME": str(tmp_path), "PATH": programs}
    done = subprocess.run(
        ["bash", "--norc", "-c", COMPLETE], env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.stdout.splitlines() == ["complete -o default -F _luwu_completion luwu", "restore remove"], done.stderr
    assert list(tmp_path.iterdir()) == []
