"""Every timeout and interval of the network, in one place; `tools/timeouts_table.py` writes them into docs/timeouts.md.

Those that the message `Network` of control.proto has, too, reach every participant over UDP.
"""

from __future__ import annotations

from luwu.core.quantities import Seconds
from luwu.core.settings import Group


class Timeouts(Group):
    """Timeouts of both sides. The defaults bear a link that is cut for ten seconds."""

    connect_seconds: Seconds = 60.0
    """`luwu.connect` tries this long to reach a server before it gives up with ServerError."""
    retry_seconds: Seconds = 0.2
    """Pause between two tries to reach a server."""
    refused_seconds: Seconds = 2.5
    """A port that answers otherwise than a server for this long is not ours; gRPC may repeat an old error for 1.2 s."""
    challenge_seconds: Seconds = 30.0
    """A join must follow its challenge within this time; a connection that has proved nothing by then is closed."""
    watch_seconds: Seconds = 10.0
    """A participant that has joined must watch the run within this time, or it counts as lost."""
    rejoin_seconds: Seconds = 30.0
    """A join waits this long for the run before it to end, then it is told what that run waits for."""
    gather_seconds: Seconds = 600.0
    """Workers wait this long for the others of their run before it fails."""
    answer_seconds: Seconds = 60.0
    """A call that waits for no other worker is answered within this time."""
    keepalive_interval_seconds: Seconds = 10.0
    """After this much silence each side asks whether the other is still there."""
    keepalive_timeout_seconds: Seconds = 30.0
    """The other side counts as lost when it has not answered that, or not received anything sent, for this long."""
    reconnect_seconds: Seconds = 30.0
    """The data plane tries this long to have a broken connection back before the worker counts as lost."""
    hello_seconds: Seconds = 10.0
    """A connection of the data plane is made, TLS included, within this time, or tried again. A worker that is refused
    when it connects again waits as long for the reason."""
    silence_seconds: Seconds = 20.0
    """A connection of the data plane is made anew when nothing sent over it was acknowledged for this long."""
    backoff_seconds: Seconds = 0.05
    """Pause before the data plane's second try to connect; it doubles with each further one."""
    longest_backoff_seconds: Seconds = 2.0
    """The longest pause between two tries to connect."""
    farewell_seconds: Seconds = 1.0
    """A side of the data plane that closes takes this long at most to tell the other why."""
    heartbeat_seconds: Seconds = 0.001
    """Over UDP, each end of a link tells its state this often while that changes."""
    idle_heartbeat_seconds: Seconds = 0.05
    """The same while nothing changes."""
    resend_seconds: Seconds = 0.05
    """A sender over UDP whose packets are not acknowledged for this long sends some again, unasked."""
    longest_resend_seconds: Seconds = 1.0
    """Bound of `resend_seconds`, which doubles with each further time."""
    queueing_seconds: Seconds = 0.005
    """A sender over UDP slows down when packets wait longer than this in a link's queues."""
    switch_return_seconds: Seconds = 60.0
    """A run waits this long for a switch that has ended to be started again before it fails."""
    standby_seconds: Seconds = 60.0
    """A commit waits this long for a standby that is away before its run fails; a join waits `rejoin_seconds`."""
    standby_look_seconds: Seconds = 0.05
    """A server and its standby note what they have agreed on within this time; the first commit waits for it."""
    standby_ask_seconds: Seconds = 1.0
    """A standby that is not connected asks its server this often, and a server its standby if it has taken over."""
    signal_check_seconds: Seconds = 0.1
    """Ctrl-C is seen within this time while a worker waits for a commit."""
    look_seconds: Seconds = 0.5
    """The server looks this often whether its run has failed or ended, and a worker whether its links hold."""
    drain_seconds: Seconds = 5.0
    """The workers of a failed run have this long to end before the server takes the next ones."""
    progress_seconds: Seconds = 2.0
    """A worker tells the server this often what it does, while that changes."""
    idle_progress_seconds: Seconds = 3.0
    """The same while nothing changes."""
    slow_worker_seconds: Seconds = 10.0
    """The server names a worker without progress when the others have waited for it this long."""
    status_seconds: Seconds = 60.0
    """The server logs this often how far the run is, or whom it waits for."""
    leave_seconds: Seconds = 10.0
    """A worker that leaves waits this long for the server's answer."""
    close_seconds: Seconds = 5.0
    """A server that closes gives calls under way this long to end."""
    health_seconds: Seconds = 5.0
    """`luwu health` waits this long for an answer."""
    trace_question_seconds: Seconds = 10.0
    """A trace that nobody has asked for in this long may be given up for another."""
    trace_kept_seconds: Seconds = 60.0
    """A trace that nobody has asked for in this long is forgotten."""
    trace_records_seconds: Seconds = 15.0
    """A trace waits this long for workers' records once the server's are there."""
    metrics_seconds: Seconds = 5.0
    """A client of `--metrics` has this long to ask; then its connection is closed."""


TIMEOUTS = Timeouts()

PATIENCE_SECONDS = 2.0
"""A wait that takes longer than this is logged."""
