"""Figures that servers, switches and `luwu train` give to Prometheus: each is declared here alone.

`tools/figures_table.py` writes them into docs/monitoring.md, and `tools/dashboard.py` draws them for Grafana.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

Stats = Mapping[str, Any]


class Figure(NamedTuple):
    """A figure of one process.

    Attributes:
        name: as Prometheus has it, without ``_total``, which counters get.
        kind: a counter only grows, and begins again at 0 with its process or its run; a gauge is a state.
        help: its meaning, with its unit.
        key: name of its value in the stats that it is read from; ``group.name`` is one level deeper.
    """

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    key: str

    @property
    def full_name(self) -> str:
        """Name in queries."""
        return f"{self.name}_total" if self.kind == "counter" else self.name

    def read(self, stats: Stats) -> float | None:
        """Return its value in the stats; None: they have none."""
        value: Any = stats
        for part in self.key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return None if value is None else float(value)


SERVER = (
    Figure("luwu_server_step", "gauge", "committed steps of the store", "step"),
    Figure("luwu_server_unwritten_steps", "gauge", "answered steps that are not on the disk yet", "unwritten"),
    Figure(
        "luwu_server_since_commit_seconds",
        "gauge",
        "time since the last commit point, or the start",
        "since_commit_seconds",
    ),
    Figure("luwu_server_attempts", "gauge", "attempts at steps that have ended, since the store was made", "attempts"),
    Figure(
        "luwu_server_rolled_back", "gauge", "attempts that were rolled back, since the store was made", "rolled_back"
    ),
    Figure("luwu_server_voided", "counter", "attempts that a lost worker made void", "voided"),
    Figure("luwu_server_clipped", "counter", "committed steps whose gradient was clipped", "clipped"),
    Figure("luwu_server_pulled_bytes", "counter", "bytes of blocks that workers have pulled", "bytes_pulled"),
    Figure("luwu_server_pushed_bytes", "counter", "bytes of gradients that workers have pushed", "bytes_pushed"),
    Figure("luwu_server_pulls", "counter", "pulls of blocks", "pulls"),
    Figure("luwu_server_pulls_waited", "counter", "pulls that found their block not in memory", "pulls_waited"),
    Figure("luwu_server_updated_elements", "counter", "parameters that were updated", "elements_updated"),
    Figure("luwu_server_update_seconds", "counter", "time of all threads in updates", "update_seconds"),
    Figure("luwu_server_updated_chunks", "counter", "chunks that were updated", "chunks_updated"),
    Figure(
        "luwu_server_states_waited",
        "counter",
        "chunks whose gradient was there before their optimizer states",
        "states_waited",
    ),
    Figure(
        "luwu_server_memory_bytes", "gauge", "memory for parameters, states and gradients, as planned", "planned_bytes"
    ),
    Figure("luwu_server_paused", "gauge", "1 while a full disk pauses the run, else 0", "paused"),
    Figure("luwu_server_failures", "counter", "runs that have failed since the server was started", "failures"),
    Figure("luwu_server_workers", "gauge", "workers that make a step", "workers"),
    Figure("luwu_server_workers_present", "gauge", "workers that are in the run", "workers_present"),
    Figure("luwu_server_standby_connected", "gauge", "1 while the standby is connected, else 0", "standby.connected"),
    Figure(
        "luwu_server_standby_in_sync",
        "gauge",
        "1 while no commit counts without the standby, else 0",
        "standby.required",
    ),
    Figure(
        "luwu_server_standby_waits_seconds",
        "gauge",
        "time that a commit has waited for the standby, 0 if none waits",
        "standby.waits_seconds",
    ),
    Figure(
        "luwu_server_standby_sent_bytes", "counter", "bytes of records that went to the standby", "standby.bytes_sent"
    ),
    Figure("luwu_server_packets_in", "counter", "packets of the run that came over UDP", "network.packets_in"),
    Figure("luwu_server_packets_out", "counter", "packets of the run that were sent over UDP", "network.packets_out"),
    Figure(
        "luwu_server_packets_again",
        "counter",
        "packets that were sent again, because they were lost",
        "network.resent",
    ),
    Figure("luwu_store_read_bytes", "counter", "bytes that were read from the store", "bytes_read"),
    Figure("luwu_store_written_bytes", "counter", "bytes that were written to the store", "bytes_written"),
    Figure(
        "luwu_store_read_seconds",
        "counter",
        "time in which reads of parameters, and of states, were under way, added up",
        "read_seconds",
    ),
    Figure("luwu_store_write_seconds", "counter", "time in which writes were under way", "write_seconds"),
    Figure("luwu_store_snapshots", "counter", "snapshots that were taken by schedule", "snapshots"),
)

WORKER_BEHIND = Figure(
    "luwu_worker_behind_seconds", "gauge", "time that others have waited for this worker, by rank", "behind_seconds"
)
"""Figure of each worker that is in a server's run; its label is ``rank``."""

SWITCH = (
    Figure("luwu_switch_packets_in", "counter", "packets of the run that came", "packets_in"),
    Figure("luwu_switch_packets_out", "counter", "packets of the run that were sent", "packets_out"),
    Figure("luwu_switch_sums", "counter", "sums of gradients that were sent on", "sums_sent"),
    Figure("luwu_switch_sums_again", "counter", "sums that were sent again, because they were lost", "sums_sent_again"),
    Figure("luwu_switch_state_bytes", "gauge", "memory of the run's sums", "state_bytes"),
    Figure("luwu_switch_received_bytes", "counter", "bytes that its socket has received", "socket.bytes_received"),
    Figure("luwu_switch_sent_bytes", "counter", "bytes that its socket has sent", "socket.bytes_sent"),
    Figure(
        "luwu_switch_dropped_full",
        "counter",
        "datagrams that the kernel had no room for when they were sent",
        "socket.dropped_full",
    ),
    Figure(
        "luwu_switch_kernel_packets_in", "counter", "packets that came inside the kernel, with --xdp", "xdp.packets_in"
    ),
    Figure("luwu_switch_kernel_packets_out", "counter", "packets that were sent inside the kernel", "xdp.packets_out"),
)

TRAINING = (
    Figure("luwu_train_step", "gauge", "committed steps of the run", "step"),
    Figure("luwu_train_steps", "gauge", "steps that the run is to make", "steps"),
    Figure("luwu_train_loss", "gauge", "loss of the last attempt, in nats per token", "loss"),
    Figure("luwu_train_validation_loss", "gauge", "last validation loss, in nats per token", "validation_loss"),
    Figure("luwu_train_gradient_norm", "gauge", "global norm of the last gradient before clipping", "grad_norm"),
    Figure("luwu_train_learning_rate", "gauge", "learning rate of the last attempt", "lr"),
    Figure("luwu_train_loss_scale", "gauge", "factor on the loss of the last attempt", "loss_scale"),
    Figure("luwu_train_tokens_per_second", "gauge", "tokens a second of all workers, over the last attempts", "speed"),
    Figure("luwu_train_attempt_seconds", "gauge", "time of the last attempt", "seconds"),
    Figure("luwu_train_hidden_ratio", "gauge", "share of communication that computation hides, lately", "hidden"),
    Figure("luwu_train_left_seconds", "gauge", "time to the last step at the recent pace", "left"),
    Figure(
        "luwu_train_restarts",
        "counter",
        "workers that were started here in the place of killed ones",
        "restarts",
    ),
)

ALERT = Figure("luwu_train_alert", "gauge", "1 while the alert of this name is raised, else 0", "raised")
"""Figure of each alert of a run; its label is ``alert``."""

SESSION = (
    Figure("luwu_session_step", "gauge", "committed steps of the store", "step"),
    Figure("luwu_session_attempts", "gauge", "attempts at steps that have ended, since the store was made", "attempts"),
    Figure(
        "luwu_session_rolled_back", "gauge", "attempts that were rolled back, since the store was made", "rolled_back"
    ),
    Figure("luwu_session_pulled_bytes", "counter", "bytes of blocks that this worker has pulled", "bytes_pulled"),
    Figure("luwu_session_pushed_bytes", "counter", "bytes of gradients that this worker has pushed", "bytes_pushed"),
    Figure(
        "luwu_session_busy_seconds", "counter", "time in which requests of this worker were under way", "busy_seconds"
    ),
    Figure("luwu_session_wait_seconds", "counter", "part of it in which the worker stood still", "wait_seconds"),
)

TABLES = {
    "a server (`luwu server`, and `luwu train` with a server of its own)": (*SERVER, WORKER_BEHIND),
    "a switch (`luwu switch`)": SWITCH,
    "a run (`luwu train`)": (*TRAINING, ALERT),
    "a worker of your own program (`luwu.integrations.prometheus`)": SESSION,
}
"""Figures by the kind of process that has them."""

Source = Callable[[], Stats]
"""Function that returns the stats of one process at the time of the call, from any thread."""
