"""`luwu watch` as a process of its own, and readers of its page's stream and of figures for Prometheus."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kit.common import BenchmarkError

SCRAPE_SECONDS = 1.0


class Watch:
    """`luwu watch` over some places. ``url`` has the token."""

    def __init__(self, places: Sequence[Path]) -> None:
        command = [sys.executable, "-m", "luwu.cli", "watch", *map(str, places), "--port", "0"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            raise BenchmarkError(f"luwu watch ended with {self._process.wait()}")

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(60)
        if self._process.stdout is not None:
            self._process.stdout.close()

    @property
    def peak_bytes(self) -> int:
        """The largest size that its memory has had."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024

    def records(self, runs: str = "0") -> Iterator[dict[str, Any]]:
        """Yield what a page of some runs gets, as it comes."""
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
        token = parse_qs(parts.query)["token"][0]
        connection.request("GET", f"/api/stream?runs={runs}", headers={"authorization": f"Bearer {token}"})
        try:
            for line in connection.getresponse():
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])
        finally:
            connection.close()


@contextmanager
def being_watched(watch: Watch, metrics_url: str) -> Iterator[None]:
    """Context manager: a page is open, and figures are scraped every second."""
    ended = threading.Event()

    def read() -> None:
        for _ in watch.records():
            if ended.is_set():
                return

    def scrape() -> None:
        parts = urlsplit(metrics_url)
        while not ended.wait(SCRAPE_SECONDS):
            connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
            connection.request("GET", parts.path)
            connection.getresponse().read()
            connection.close()

    threads = [threading.Thread(target=each) for each in (read, scrape)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        time.sleep(SCRAPE_SECONDS)  # its last look at the run
