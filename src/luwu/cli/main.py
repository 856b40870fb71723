"""The `luwu` command. Errors that users can act on are one line and an exit code, never a traceback."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from luwu.cli.doctor import doctor
from luwu.cli.evaluate import evaluate
from luwu.cli.explain import explain
from luwu.cli.export import export
from luwu.cli.generate import generate
from luwu.cli.health import health
from luwu.cli.help import explain_error
from luwu.cli.importing import import_model
from luwu.cli.launch import app as launch
from luwu.cli.link import link
from luwu.cli.plan import plan
from luwu.cli.server import server
from luwu.cli.simulate import simulate
from luwu.cli.snapshot import app as snapshot
from luwu.cli.standby import app as standby
from luwu.cli.status import status
from luwu.cli.store import app as store
from luwu.cli.switch import switch
from luwu.cli.terminal import GO_BACK, keep_names_whole, say
from luwu.cli.tokenizer import tokenizer
from luwu.cli.trace import trace
from luwu.cli.train import train
from luwu.cli.watch import watch
from luwu.core.errors import ConfigError, LuwuError, StoreCorruptError
from luwu.core.room import is_full, no_room
from luwu.core.words import printable

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # errors come as exceptions; read when gRPC is first imported

UsageError: Any = typer.BadParameter.__base__
"""Typer's error of an option or an argument; its name is in a private module."""


def remedy(error: LuwuError) -> str:
    """Return the text that commands add to an error: other commands that help."""
    if not isinstance(error, StoreCorruptError):
        return ""
    from luwu.store.snapshots import may_help

    return f"\n{GO_BACK}; `luwu store verify` says how much is damaged" if may_help(str(error)) else ""


def hint(error: type[LuwuError]) -> str:
    """Return the words at the end of an error that lead to its page."""
    return f"(luwu help {error.code})"


def fail(error: LuwuError) -> NoReturn:
    """Write an error to standard error, and end the command."""
    from luwu.core.error_pages import pages

    sys.stderr.write(f"luwu: {printable(str(error))}{remedy(error)} {hint(type(error))}\n")
    raise typer.Exit(pages()[error.code].exit) from None


@contextmanager
def usage_hints() -> Iterator[None]:
    """Context manager: an error of usage leads to its page, too."""
    try:
        yield
    except UsageError as error:
        text = f"{error.format_message()} {hint(ConfigError)}"
        error.format_message = lambda: text
        raise


class Commands(TyperGroup):
    """Group of commands whose typed errors become a message on standard error and an exit code."""

    def invoke(self, context: typer.Context) -> object:  # type: ignore[override]
        """Run the chosen command."""
        # A parent may have left it ignored, and then nobody learns how the processes of a command end.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):  # a sample may have letters that the output's encoding lacks
                with suppress(OSError):  # one that was opened for something else, as a test may do
                    stream.reconfigure(errors="backslashreplace")
        try:
            with usage_hints():
                return super().invoke(context)
        except LuwuError as error:
            fail(error)
        except OSError as error:
            if not is_full(error):
                raise
            fail(no_room(error.filename or "a file", error))

    def parse_args(self, context: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Read the options before the command's name."""
        if not args or "--help" in args or isinstance(self.commands.get(args[-1]), TyperGroup):  # each shows help
            keep_names_whole()
        with usage_hints():
            return super().parse_args(context, args)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    epilog="`luwu help CODE` explains an error, and `luwu help exit` lists exit statuses.",
    pretty_exceptions_enable=False,
)


def _say_version(wanted: bool) -> None:
    if wanted:
        from luwu import __version__

        say(f"luwu {__version__}")
        raise typer.Exit


@app.callback()
def luwu(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """Train models whose parameters and optimizer state live in a store on disk."""


app.command()(train)
app.command()(tokenizer)
app.command()(server)
app.command()(switch)
app.add_typer(launch, name="launch")
app.command()(generate)
app.command("eval")(evaluate)
app.command("import")(import_model)
app.command()(export)
app.add_typer(store, name="store")
app.add_typer(snapshot, name="snapshot")
app.add_typer(standby, name="standby")
app.command()(health)
app.command()(status)
app.command()(watch)
app.command()(explain)
app.command()(trace)
app.command()(doctor)
app.command()(plan)
app.command()(link)
app.command()(simulate)
app.command("help")(explain_error)

if __name__ == "__main__":
    app()
