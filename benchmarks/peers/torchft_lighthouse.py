"""torchft's lighthouse, which tells replicas of one another: prints its address, and ends with its standard input."""

from __future__ import annotations

import json
import sys

from kit.child import take_stdout
from torchft.coordination import LighthouseServer


def main() -> None:
    """Serves until standard input ends."""
    replies = take_stdout()
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=1000, heartbeat_timeout_ms=2000)
    replies.write(json.dumps({"address": lighthouse.address()}) + "\n")
    sys.stdin.read()


if __name__ == "__main__":
    main()
