"""`luwu trace`: the next steps of a run that is under way, as a file for ui.perfetto.dev."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from luwu.cli.setting_flags import option_of
from luwu.cli.terminal import say
from luwu.control.credentials import CredentialSettings
from luwu.core.words import counted, printable

if TYPE_CHECKING:
    from luwu.control import control_pb2 as pb

DEFAULT_LIMIT = "64MiB"
"""Bytes of the server's records, some 1.6 million, and of those of all workers."""


def trace(
    where: Annotated[
        str, typer.Argument(help="luwu://HOST:PORT of a server, of all with commas between, or a run folder")
    ],
    steps: Annotated[int, typer.Option(help="attempts at steps to trace, from the next one on")] = 5,
    output: Annotated[
        Path | None, typer.Option(help="file, .json or .json.gz; default: trace.json.gz in the run folder, or here")
    ] = None,
    limit: Annotated[
        str, typer.Option(help="most memory for a server's records, and for those of all workers and switches")
    ] = DEFAULT_LIMIT,
    profile_worker: Annotated[
        int | None, typer.Option(help="number of a worker that runs torch.profiler, too; its events are in the file")
    ] = None,
    key_file: Annotated[Path | None, option_of(CredentialSettings, "key_file")] = None,
    tls_cert: Annotated[Path | None, option_of(CredentialSettings, "tls_cert")] = None,
    tls_key: Annotated[Path | None, option_of(CredentialSettings, "tls_key")] = None,
    tls_ca: Annotated[Path | None, option_of(CredentialSettings, "tls_ca")] = None,
) -> None:
    """Write what servers, switches and workers do in the next steps of a run, as a trace for ui.perfetto.dev.

    Each block's way is a flow: pull, read, hand out, compute, push, collect, read states, update, write, commit. Of
    several servers name all, in the order in which the workers name them. Steps are the run's own where its folder is
    given and its store is on this machine; else the store's.

    Exit status: 0 the trace is written, 1 nobody answers, the run ended, or another trace is under way, 2 no run is in
    that folder, arguments that cannot work, or a file that cannot be written.
    """
    from luwu.control.address import SCHEME, parse_urls
    from luwu.control.credentials import find_credentials, tls_files
    from luwu.control.tracing import Ask, ask_at, ask_in, trace_run
    from luwu.core.quantities import parse_size
    from luwu.launch.asking import server_of
    from luwu.launch.first_counts import first_counts_of
    from luwu.observe.own_steps import count_steps_from
    from luwu.observe.run_trace import require_writable, write_run_trace

    most_bytes = parse_size(limit)
    path = output or Path("trace.json.gz")
    asks: list[Ask]
    credentials = find_credentials(key_file=key_file, tls=tls_files(tls_cert, tls_key, tls_ca))
    if where.startswith(SCHEME):
        asks = [ask_at(address.url, credentials) for address in parse_urls(where)]
    else:
        path = output or Path(where) / path
        if server := server_of(Path(where)):
            asks = [ask_at(address.url, server.find()) for address in parse_urls(server.url)]
        else:
            asks = [ask_in(Path(where))]
    require_writable(path)
    found = trace_run(asks, steps, most_bytes, say_aside, profile_worker=profile_worker)
    first = first_counts_of(where)
    if first is not None:
        count_steps_from(found, first.step)
    made = write_run_trace(found, path, where if where.startswith(SCHEME) else Path(where).absolute().name)
    steps_text = f"step {found.first_step:,}"
    if found.last_step > found.first_step:
        steps_text = f"steps {found.first_step:,} to {found.last_step:,}"
    whose = "" if first is not None else " of the store"
    say(f"{path}: {steps_text}{whose}, {counted(len(made.slices), 'span')}; open it at ui.perfetto.dev")
    say_what_is_missing(found, profile_worker)


def say_what_is_missing(found: pb.RunTrace, profile_worker: int | None) -> None:
    """Say on standard error which records, and which part of the profile, a trace does not have."""
    for process in found.processes:
        if process.dropped:
            say_aside(f"{process.name}: {process.dropped:,} spans found no room; raise --limit, or trace fewer steps")
        if process.profile.dropped:
            say_aside(
                f"{process.name}: {process.profile.dropped:,} events of torch.profiler found no room; raise --limit, "
                "or trace fewer steps"
            )
        if process.profile.failure:
            say_aside(f"{process.name}: no events of torch.profiler: {process.profile.failure}")
        if process.name == f"worker {profile_worker}" and not process.HasField("profile"):
            say_aside(f"{process.name}: no events of torch.profiler came; install the server's version of luwu there")
    for name in found.missing:
        say_aside(f"{name}: its records did not come")


def say_aside(text: str) -> None:
    """Write text to standard error."""
    typer.echo(printable(text), err=True)
