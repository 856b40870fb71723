"""Parts that the benchmarks share. After an import of it, `harness` can be imported, too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
