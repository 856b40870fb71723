"""`luwu train`: train a language model on this machine, with server and workers started for you."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from luwu.cli.setting_flags import Given, option_of, setting_flags
from luwu.control.credentials import CredentialSettings
from luwu.core.exits import Exit
from luwu.core.settings import flag_of
from luwu.launch.settings import Settings

if TYPE_CHECKING:
    from rich.console import Console

    from luwu.data.corpus import Corpus
    from luwu.launch.folder import RunFolder
    from luwu.launch.job import CredentialFiles, ServerAccess
    from luwu.launch.outcome import Outcome

PLAIN_DATA = "agree to a server's udp, unencrypted, although there are certificates; LUWU_PLAIN_DATA=1 does the same"

OF_THE_SERVER = (
    "stores", "memory", "endurance", "durable", "snapshot_every", "snapshot_keep", "step_deadline_seconds", "listen",
    "workers_here", "aggregate",
)  # fmt: skip
"""Settings of a run that a server elsewhere has by itself."""

MOST_WORKERS = 4096
"""Most workers of one machine."""


@setting_flags(Settings)
def train(
    config: Annotated[Path | None, typer.Option(help="TOML file with any of the settings")] = None,
    run: Annotated[Path | None, typer.Option(help="run folder: started if new, resumed if not")] = None,
    *,
    given: Given,
    new_run: Annotated[
        bool, typer.Option("--new-run", help="start a new run at step 0 from the weights of another run's store")
    ] = False,
    server: Annotated[
        str | None,
        typer.Option(help="luwu://HOST:PORT, or several with commas: train on these servers, start none here"),
    ] = None,
    standby: Annotated[
        str | None, typer.Option(help="luwu://HOST:PORT of that server's standby: go on there once it has taken over")
    ] = None,
    join: Annotated[str | None, typer.Option(help="luwu://HOST:PORT of a train --listen: run workers for it")] = None,
    key_file: Annotated[Path | None, option_of(CredentialSettings, "key_file")] = None,
    tls_cert: Annotated[Path | None, option_of(CredentialSettings, "tls_cert")] = None,
    tls_key: Annotated[Path | None, option_of(CredentialSettings, "tls_key")] = None,
    tls_ca: Annotated[Path | None, option_of(CredentialSettings, "tls_ca")] = None,
    plain_data: Annotated[bool, typer.Option("--plain-data", help=PLAIN_DATA)] = False,
) -> None:
    """Train a language model on text, on this machine or several.

    Without arguments a small GPT learns Python from the standard library's source in a few minutes. The same command
    again continues the run. Ctrl-C stops at the next commit and exits with 130; a second one stops at once.

    For workers on several machines add `--listen 0.0.0.0:7070 --workers-here N`, and on each other machine start the
    `luwu train --join` that it prints; the key file must be there, too. With `--server` all workers of that server
    start here; memory, stores and snapshots are the server's settings.
    """
    credentials = find_files(key_file, (tls_cert, tls_key, tls_ca))
    if key_file is not None:
        credentials.find()  # a key that is not read later would hide a wrong path
    if join is not None:
        others = {"--config": config, "--new-run": new_run or None, "--server": server, "--standby": standby}
        refuse_beside_join([flag for flag, value in others.items() if value is not None], given)
        join_training(find_server(join, credentials), run, given["run"])
        return
    remote = None if server is None else find_server(server, credentials, plain_data)
    if standby is not None:
        remote = with_standby(remote, standby)
    if remote is not None:
        refuse_beside_server(given["run"])
    run_training(config, run, given, remote, takes_weights=new_run, credentials=credentials)


def refuse_beside_join(others: list[str], given: Given) -> None:
    """Raise ConfigError for a flag that the machine which has the run has, and not those that join it."""
    from luwu.core.errors import ConfigError
    from luwu.launch.joining import OWN_SETTINGS

    flags = [
        flag_of(Settings, group, name).name
        for group, values in given.items()
        for name in values
        if (group, name) not in [("run", own) for own in OWN_SETTINGS]
    ]
    if found := [*others, *flags]:
        allowed = ", ".join(flag_of(Settings, "run", name).name for name in OWN_SETTINGS)
        raise ConfigError(
            f"{found[0]}: expected only --run, {allowed} and credentials beside --join; the machine that has the run "
            "has its settings"
        )


def join_training(server: ServerAccess, run: Path | None, own: dict[str, Any]) -> None:
    """Run workers for a run that another machine has, and tell how it ended."""
    from rich.console import Console

    from luwu.launch.joining import join_run
    from luwu.observe.display import choose_display

    workers = own.get("workers_here", 1)
    if not 1 <= workers <= MOST_WORKERS:
        from luwu.core.errors import ConfigError

        raise ConfigError(f"--workers-here: expected 1 to {MOST_WORKERS} beside --join, found {workers}")
    with choose_display(Console(), 1) as display:
        stopped = join_run(server, workers, own, run, display)
    if stopped:
        raise typer.Exit(Exit.STOPPED)


def refuse_beside_server(given: dict[str, Any]) -> None:
    """Raise ConfigError for a setting of the run that a server elsewhere has by itself."""
    from luwu.core.errors import ConfigError

    for name in OF_THE_SERVER:
        if name in given:
            flag = flag_of(Settings, "run", name).name
            raise ConfigError(f"{flag}: expected none beside --server; give it to luwu server, whose it is")


def read_config(config: Path | None, server: ServerAccess | None) -> dict[str, Any]:
    """Return the tables of a settings file; raises ConfigError for an average beside a server."""
    from luwu.core.aggregation import MEAN
    from luwu.core.errors import ConfigError
    from luwu.core.settings import read_toml

    tables = read_toml(config) if config else {}
    run = tables.get("run")
    found = run.get("aggregate", MEAN) if isinstance(run, dict) else MEAN
    if server is not None and found != MEAN:
        raise ConfigError(f"run.aggregate: expected none beside --server, found {found}; give it to luwu server")
    return tables


def find_files(key_file: Path | None, tls: tuple[Path | None, Path | None, Path | None]) -> CredentialFiles:
    """Return the files of credentials that were named; raises ConfigError where they are no whole set."""
    from luwu.control.credentials import tls_files
    from luwu.core.quantities import absolute
    from luwu.launch.job import CredentialFiles

    files = tls_files(*tls)
    return CredentialFiles(
        key_file=absolute(key_file) if key_file else None,
        tls=(absolute(files.certificate), absolute(files.key), absolute(files.authority)) if files else None,
    )


def find_server(url: str, credentials: CredentialFiles, plain_data: bool = False) -> ServerAccess:
    """Return the server that was named, once its URL and files have been looked at; raises ConfigError."""
    from luwu.control.address import SCHEME, parse_urls
    from luwu.launch.job import ServerAccess

    credentials.find()
    return ServerAccess(
        url=SCHEME + ",".join(map(str, parse_urls(url))),
        key_file=credentials.key_file,
        tls=credentials.tls,
        plain_data=plain_data or None,
    )


def with_standby(server: ServerAccess | None, standby: str) -> ServerAccess:
    """Return the server's access with its standby's URL; raises ConfigError."""
    from luwu.control.address import parse_url
    from luwu.core.errors import ConfigError

    if server is None or "," in server.url:
        found = "none" if server is None else f"{server.url}: several servers have no standby"
        raise ConfigError(f"--standby: expected one --server beside it, found {found}")
    url = parse_url(standby).url
    if url == server.url:
        raise ConfigError(f"--standby: expected another server than --server, found {url} twice")
    return server.model_copy(update={"standby": url})


def _default_folder(chosen: tuple[Mapping[str, Any], ...]) -> Path:
    """Return the folder of a run that names none: its text and model name it, whatever else is chosen."""
    from luwu.launch.folder import default_folder
    from luwu.launch.settings import build_settings

    named = [{name: tables[name] for name in ("data", "model") if name in tables} for tables in chosen]
    settings = build_settings(*named)
    return default_folder(settings.data.path, settings.model.path)


def run_training(
    config: Path | None,
    run: Path | None,
    flags: dict[str, dict[str, Any]],
    server: ServerAccess | None = None,
    *,
    takes_weights: bool = False,
    credentials: CredentialFiles | None = None,
) -> None:
    """Settle the settings, prepare the data, run, and tell how it ended."""
    from rich.console import Console

    from luwu.core.errors import ConfigError
    from luwu.launch.checks import check_machines, check_memory, check_store
    from luwu.launch.folder import RunFolder, check_model, tokenizer_of_model
    from luwu.launch.job import CredentialFiles
    from luwu.launch.own_folder import require_own
    from luwu.launch.returning import run_job
    from luwu.launch.settings import build_settings, check_resume
    from luwu.observe.display import choose_display
    from luwu.train.devices import check_device

    chosen = (read_config(config, server), flags)
    folder = RunFolder(run or _default_folder(chosen))
    folder.require_files()
    refuse_joined(folder)
    saved = folder.saved_settings()
    settings = build_settings(saved or {}, *chosen)
    require_own(folder, settings.data.path, [*settings.run.stores, *([config] if config else [])])
    if "workers_here" in flags.get("run", {}) and not settings.run.listen:
        raise ConfigError(
            "--workers-here: expected --listen or --join beside it, found neither; leave it out, or listen"
        )
    check_others(settings)
    if settings.model.path is not None:
        check_model(Path(settings.model.path))
    check_machines(settings)
    check_device(settings)
    if saved is not None:
        check_resume(build_settings(saved), settings)
    else:
        if settings.data.tokenizer is None:
            settings = build_settings({"data": {"tokenizer": tokenizer_of_model(settings.model.path)}}, *chosen)
        check_data(settings)
    if server is None:
        check_store(settings, folder, takes_weights=takes_weights)
        check_memory(settings, count_vocabulary(settings), folder)
    console = Console()
    with choose_display(console, settings.run.steps) as display:
        display.say(f"run folder {folder.path}")
        outcome = run_job(
            settings, folder, display, server,
            takes_weights=takes_weights, credentials=credentials or CredentialFiles(),
        )  # fmt: skip
    if outcome.corpus is not None:
        draw_plots(console, settings, folder, outcome, outcome.corpus)
    tell(console, settings, folder, outcome)
    if outcome.stopped:
        raise typer.Exit(Exit.STOPPED)


def check_others(settings: Settings) -> None:
    """Raise ConfigError where a logger's package, or the program of ``on_alert``, is not there."""
    from luwu.launch.on_alert import check_program
    from luwu.observe.loggers import check_packages

    check_packages(settings.run.log)
    check_program(settings.run.on_alert)


def refuse_joined(folder: RunFolder) -> None:
    """Raise ConfigError for a folder in which this machine has run workers for a run of another one."""
    from luwu.core.errors import ConfigError
    from luwu.launch.job import Job

    if not folder.job_path.is_file():
        return
    try:
        job = Job.read(folder.job_path)
    except ConfigError:  # it is damaged, and is written anew
        return
    if job.joined:
        raise ConfigError(
            f"--run: expected a folder of this machine's runs, found {folder.path}, which keeps the text of a run that "
            "another machine has; name another, or join that run with --join"
        )


def check_data(settings: Settings) -> None:
    """Check that data and tokenizer exist and fit the model, before anything is written.

    Raises:
        DataError: data or tokenizer are missing. ConfigError: the model is too small for them.
    """
    from luwu.data.preparation import check_length
    from luwu.data.source import find_text
    from luwu.data.tokenizer import find_tokenizer
    from luwu.launch.folder import config_file
    from luwu.models.sizes import check_config

    data, source = settings.data, find_text(settings.data.path)
    if data.tokenizer is not None:
        find_tokenizer(data.tokenizer)
    else:
        check_length(source, settings.model.seq, data.validation_fraction)
    if settings.model.path is not None:
        file = config_file(Path(settings.model.path))
        check_config(file, count_vocabulary(settings) or 0, settings.model.seq)


def count_vocabulary(settings: Settings) -> int | None:
    """Return the number of tokens in the data's vocabulary before the data is read; None: it is not known yet."""
    from luwu.data.tokenizer import BYTE_VALUES, count_tokens

    return BYTE_VALUES if settings.data.tokenizer is None else count_tokens(settings.data.tokenizer)


def draw_plots(console: Console, settings: Settings, folder: RunFolder, outcome: Outcome, corpus: Corpus) -> None:
    """Draw the loss curve and the throughput plot into the run folder; a stopped run without room goes without them.

    Raises:
        StoreSpaceError: the disk is still full when the time is over.
    """
    from luwu.core.room import Room, RoomWait, WaitStoppedError
    from luwu.launch.interrupts import Interrupts
    from luwu.observe.metrics import read_metrics

    os.environ["MPLBACKEND"] = "agg"  # a notebook names one that may not be installed here
    from luwu.observe.plots import draw_loss, draw_throughput

    def say(wait: RoomWait | None) -> None:
        console.print(str(wait or "there is room again"), highlight=False, markup=False, soft_wrap=True)

    rows = read_metrics(folder.metrics_path)
    with Interrupts() as interrupts, suppress(WaitStoppedError):
        stopped = outcome.stopped
        room = Room(settings.run.disk_full_wait_seconds, say, lambda: stopped or interrupts.count > 0)
        loss, throughput = folder.plot_paths
        draw_loss(rows, loss, outcome.validation_loss, corpus.entropy, corpus.unit, room)
        draw_throughput(rows, throughput, room)


def tell(console: Console, settings: Settings, folder: RunFolder, outcome: Outcome) -> None:
    """Print how the run ended."""
    from rich.text import Text

    from luwu.core.words import printable

    def say(*parts: str | tuple[str, str]) -> None:
        styled = [(part, "") if isinstance(part, str) else part for part in parts]
        text = Text.assemble(*((printable(words), style) for words, style in styled))
        console.print(text, highlight=False, soft_wrap=True)

    if outcome.bytes_written:
        say(written_words(settings, outcome))
    if outcome.stopped:
        if outcome.corpus is None and outcome.step == 0:
            say("stopped while reading the text; the same command goes on from there")
        elif outcome.step >= settings.run.steps:
            say("stopped before the evaluation; every step is committed, the same command evaluates it")
        else:
            say(f"stopped after step {outcome.step} of {settings.run.steps}; the same command goes on from there")
        return
    loss, corpus = outcome.validation_loss, outcome.corpus
    assert loss is not None and corpus is not None
    say("")
    say(
        ("validation loss ", ""),
        (f"{loss:.3f}", "bold"),
        f" nats per {corpus.unit} (single {corpus.unit}s without context: {corpus.entropy:.2f}), ",
        f"{loss / corpus.bytes_per_token / math.log(2):.3f} bits per byte",
    )
    say("sample:")
    say((outcome.prompt, "dim"), outcome.sample)
    say("")
    say(f"loss.png, throughput.png and metrics.jsonl are in {folder.path}")


def written_words(settings: Settings, outcome: Outcome) -> str:
    """Return what a run has written to its store, and the share of its disks' endurance where that is given."""
    from luwu.core.units import bytes_text, parse_endurance, share_text

    words = f"written to the store: {bytes_text(outcome.bytes_written)} since this start"
    if outcome.bytes_of_run > outcome.bytes_written:
        words += f", {bytes_text(outcome.bytes_of_run)} by this run"
    if settings.run.endurance is None:
        return words
    endurance = parse_endurance(settings.run.endurance)
    disks = count_disks(settings.run.stores)
    share = share_text(outcome.bytes_of_run / disks / endurance)
    whose = "its disk" if disks == 1 else f"each of its {disks} disks"
    return f"{words}, {share} of the endurance of {whose} ({bytes_text(endurance)})"


def count_disks(folders: Sequence[str]) -> int:
    """Return the number of file systems that folders are on; of folders, where that is not known."""
    try:
        return len({Path(folder).stat().st_dev for folder in folders}) or 1
    except OSError:
        return len(folders)
