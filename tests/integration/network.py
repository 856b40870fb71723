"""`luwu server` in a process of its own, workers in theirs, and certificates: for tests of the network."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.integration.fabric_worker import NumpyWorker, small_manifest

from harness.warm import start_program
from luwu.control.credentials import TlsFiles
from luwu.errors import AuthenticationError, ServerError, WorkerLostError
from luwu.session.remote import connect

KEY = "the key of a job in the tests"
EXIT_WORKER_LOST, EXIT_SERVER, EXIT_AUTHENTICATION = 42, 43, 44


class ServerProcess:
    """`luwu server` over a store; ``url`` once it listens, its log in ``log``."""

    def __init__(self, store: Path, workers: int, *flags: str, key: str | None = KEY) -> None:
        self.log = store.with_suffix(".log")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LUWU_")}
        if key is not None:
            environment["LUWU_JOB_KEY"] = key
        command = [sys.executable, "-m", "luwu.cli", "server", "--store", str(store), "--workers", str(workers)]
        with self.log.open("ab") as log:
            self.process = start_program(
                [*command, "--memory", "64MiB", "--listen", "127.0.0.1:0", *flags],
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                text=True,
            )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()  # ends with the process, whatever happens

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.communicate()

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def logged(self) -> str:
        return self.log.read_text()


def work(url: str, rank: int, workers: int, steps: int, then: str = "leave", tls: TlsFiles | None = None) -> None:
    """A worker: some steps, and then it leaves, dies, or goes on until it is stopped."""
    try:
        session = connect(url, rank=rank, workers=workers, key=None if tls else KEY, tls=tls)
        worker = NumpyWorker(session, small_manifest())
        for _ in range(steps):
            worker.step()
        if then == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        while then == "go on":
            worker.step()
        session.close()
    except WorkerLostError:
        os._exit(EXIT_WORKER_LOST)
    except ServerError:
        os._exit(EXIT_SERVER)
    except AuthenticationError:
        os._exit(EXIT_AUTHENTICATION)


def start(target: object, *arguments: object) -> multiprocessing.process.BaseProcess:
    """Start a function in a process of its own, a fork of one that has imported what workers need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=target, args=arguments)  # type: ignore[arg-type]
    process.start()
    return process


def finish(*processes: multiprocessing.process.BaseProcess) -> list[int | None]:
    """Exit statuses, once all have ended."""
    for process in processes:
        process.join(90)
        process.kill()
        process.join()
    return [process.exitcode for process in processes]


def run_workers(url: str, workers: int, steps: int, tls: TlsFiles | None = None) -> list[int | None]:
    return finish(*(start(work, url, rank, workers, steps, "leave", tls) for rank in range(workers)))


def make_authority(folder: Path, name: str) -> Path:
    """An authority's certificate; its key lies beside it."""
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"),
        *("-subj", f"/CN={name}", "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.pem"),
    )
    return folder / f"{name}.pem"


def make_certificate(folder: Path, name: str, authority: Path, host: str = "IP:127.0.0.1") -> TlsFiles:
    """A certificate for a host that an authority signed."""
    certificate, key, request = folder / f"{name}.pem", folder / f"{name}.key", folder / f"{name}.csr"
    extensions = folder / f"{name}.extensions"
    extensions.write_text(f"subjectAltName={host}\n")
    _openssl(
        *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-subj", f"/CN={name}", "-keyout", key, "-out", request),
    )
    _openssl(
        *("x509", "-req", "-days", "2", "-in", request, "-CA", authority, "-CAkey", authority.with_suffix(".key")),
        *("-CAcreateserial", "-extfile", extensions, "-out", certificate),
    )
    return TlsFiles(certificate, key, authority)


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)
