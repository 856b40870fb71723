"""Writes docs/*.svg from docs/*.dot with graphviz; each svg names the SHA-256 of the source that it was made from.

usage: python tools/drawings.py
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def mark(source: Path) -> str:
    """Return the comment by which a drawing names its source."""
    return f"<!-- {source.name} sha256 {hashlib.sha256(source.read_bytes()).hexdigest()} -->"


def draw(source: Path) -> str:
    """Return a drawing as SVG text, without graphviz's version, so that the same source gives the same text."""
    made = subprocess.run(["dot", "-Tsvg", str(source)], check=True, capture_output=True, text=True).stdout
    _, svg, rest = re.sub(r"<!--.*?-->\n?", "", made, flags=re.DOTALL).partition("<svg")
    return f"{mark(source)}\n{svg}{rest}"


def main() -> None:
    """Write every drawing anew."""
    if shutil.which("dot") is None:
        sys.exit("drawings need graphviz: apt-get install graphviz")
    for source in sorted(DOCS.glob("*.dot")):
        source.with_suffix(".svg").write_text(draw(source))


if __name__ == "__main__":
    main()
