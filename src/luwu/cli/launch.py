"""`luwu launch`: a server and its workers in a job of a cluster's engine."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Run a server and its workers in a job of a cluster's engine.")


@app.command(context_settings={"allow_interspersed_args": False})
def slurm(
    program: Annotated[list[str], typer.Argument(help="a worker's program and its arguments, after --")],
    server: Annotated[str, typer.Option(help='arguments of luwu server, such as "--store /nvme0/run --memory 32GiB"')],
    workers_per_node: Annotated[int, typer.Option(min=1, help="workers on each node")] = 1,
    spare_nodes: Annotated[int, typer.Option(min=0, help="nodes that wait for the loss of another one")] = 0,
    server_node: Annotated[str, typer.Option(help="name of the node that has the store; default: the first")] = "",
    restarts: Annotated[int, typer.Option(min=0, help="the most restarts of workers that signals have ended")] = 3,
) -> None:
    """Run `luwu server` and workers as steps of the Slurm job that this command is started in, by sbatch or salloc.

    Each worker has RANK, WORLD_SIZE, LOCAL_RANK, LUWU_SERVER and the job key in its environment: luwu.connect() finds
    them. Options of LuWu come before the program. A worker that a signal has ended starts again, and one whose node is
    lost starts on a spare node; the others wait for it. Without a spare node, or when Slurm sends SIGUSR1, the job is
    queued again and goes on from the last commit, also with another number of nodes.

    Exit status: 0 all workers have finished, or the job is queued again; 2 settings that cannot work; else that of the
    worker or the server that ended with an error.
    """
    import shlex

    from typer.main import get_command

    from luwu.cli.server import server as server_command
    from luwu.cli.service import log_to_stderr
    from luwu.core.errors import ConfigError
    from luwu.launch.slurm import Slurm
    from luwu.launch.slurm_run import SlurmRun, SlurmSettings

    server_app = typer.Typer(add_completion=False)
    server_app.command()(server_command)
    try:
        words = shlex.split(server)
    except ValueError as error:
        raise ConfigError(f"--server {server!r}: {str(error).lower()}; close it") from None
    get_command(server_app).make_context("luwu server", list(words))  # refuses what is no argument
    settings = SlurmSettings(words, program, workers_per_node, spare_nodes, server_node, restarts)
    log_to_stderr("luwu.launch")
    raise typer.Exit(SlurmRun(settings, Slurm()).run())
