"""A step of `luwu train` on one machine, whose processors the workers and their server share.

Workers' kernels take all processors when nothing else does; what a worker does between them, in the interpreter or
copying gradients, takes one. The server's work gets the processors that are left then; the rest of it delays a worker
for as long as it takes, because a kernel in several threads ends with the slowest of them, and the workers in turn. The
disk works beside all that. Bytes are those of the server's own forecast.
"""

from __future__ import annotations

from dataclasses import dataclass

from luwu.core.manifest import element_bytes
from luwu.launch.settings import RunSettings
from luwu.models.shapes import ModelShape
from luwu.plan.steps import PhaseTime, StepTime
from luwu.probe.training import Machine, backward_seconds
from luwu.server.forecast import Forecast


@dataclass(frozen=True)
class Busy:
    """Work of a worker in a phase: seconds of ``kernels`` on all of its threads, ``alone`` on one."""

    kernels: float
    alone: float


def local_step(model: ModelShape, run: RunSettings, machine: Machine, server: Forecast) -> StepTime:
    """A step of all workers."""
    rows = -(-run.batch // run.workers)
    work = WorkerTime(model, run, machine, rows)
    disk = DiskTime(server, machine)
    forward, backward = work.forward(), work.backward()
    update = update_seconds(model, machine, server)
    requests = (server.states_read_bytes + server.written_bytes) * machine.disk.processor_seconds_per_byte
    reading = server.parameters_read_bytes * (
        machine.disk.shared_processor_seconds_per_byte + check_seconds_per_byte(run, machine, server)
    )
    forward_delay = delay_seconds(machine, reading, forward)
    backward_delay = delay_seconds(machine, update + requests + reading, backward)
    forward_alone = forward.kernels + forward.alone + forward_delay
    backward_alone = backward.kernels + backward.alone + backward_delay + disk.last_record
    followed = disk.following(work.first_gradient() + disk.backward - backward_alone, forward_alone)
    on_disk = {"forward": disk.forward + followed, "backward": disk.backward - followed}
    phases = (
        PhaseTime(
            "forward",
            max(forward_alone, on_disk["forward"]),
            {"compute": forward.kernels, "blocks": forward.alone, "server": forward_delay, "disk": on_disk["forward"]},
        ),
        PhaseTime(
            "backward",
            max(backward_alone, work.first_gradient() + on_disk["backward"]),
            {
                "compute": backward.kernels,
                "blocks": backward.alone,
                "server": backward_delay,
                "disk": on_disk["backward"],
            },
        ),
        PhaseTime("commit", machine.costs.fixed_seconds, {"commit": machine.costs.fixed_seconds}),
    )
    return StepTime("luwu train", rows, phases, {})


def update_seconds(model: ModelShape, machine: Machine, server: Forecast) -> float:
    """Return the update's seconds of one processor. States that come from the disk have their checksums compared."""
    elements = sum(model.adapter_elements() or model.block_elements())
    kept = server.written_pinned_bytes / server.written_bytes
    return machine.processors * elements * (kept / machine.update_rate + (1 - kept) / machine.verified_update_rate)


def check_seconds_per_byte(run: RunSettings, machine: Machine, server: Forecast) -> float:
    """Return one processor's seconds for each byte read.

    Parameters have checksums as states do, which the update was timed with.
    """
    elements = (server.chunk_record_bytes - server.chunk_state_bytes) / element_bytes(run.dtype)
    checks = 1 / machine.verified_update_rate - 1 / machine.update_rate
    return machine.processors * max(0.0, checks) * elements / server.chunk_state_bytes


def delay_seconds(machine: Machine, server_seconds: float, busy: Busy) -> float:
    """Return the rest of the server's work, in seconds of one processor, for which no worker left a processor idle."""
    idle = busy.alone * max(0, machine.processors - machine.workers)
    return max(0.0, server_seconds - idle) / machine.workers


class WorkerTime:
    """A worker's own time, as if it had its threads for itself."""

    def __init__(self, model: ModelShape, run: RunSettings, machine: Machine, rows: int) -> None:
        self._model, self._run, self._machine, self._kernels = model, run, machine, machine.kernels
        at_once = min(rows, run.micro_batch or rows)
        self._share = rows / at_once  # times of a slice that all rows take
        self._slices = -(-rows // at_once)
        costs = machine.costs
        self._block_seconds = costs.block_seconds + (self._slices - 1) * costs.slice_seconds
        self._rows_bytes = rows * model.sequence * model.hidden * element_bytes(run.dtype)

    def forward(self) -> Busy:
        """Work of a forward. The head's gradients come along with its loss."""
        layers = self._model.layers
        kernels = layers * (self._share * self._kernels.layer_forward + self._cut()) + self._kernels.root_forward
        return Busy(kernels, layers * self._block_seconds / 2)

    def backward(self) -> Busy:
        """Work of a backward: layers' forwards once more, and gradients on their way to the server."""
        layers = self._model.layers
        kernels = layers * self._layer_backward() + self._kernels.root_backward
        return Busy(kernels, layers * (self._block_seconds / 2) + self._handing_over(self._model.trained_parameters))

    def first_gradient(self) -> float:
        """Return the seconds from the loss until the server has a block's gradient to work with."""
        return self._layer_backward() + self._handing_over(self._model.trained_layer_size) + self._block_seconds / 2

    def _layer_backward(self) -> float:
        once = self._share * backward_seconds(self._kernels, self._run.checkpoint)
        return once + self._cut() + (self._slices - 1) * self._model.trained_layer_size / self._kernels.sum_rate

    def _cut(self) -> float:
        """Outputs of slices are put together, and so are the gradients of their inputs: read and written once."""
        return 2 * self._rows_bytes / self._kernels.memory_rate if self._slices > 1 else 0.0

    def _handing_over(self, elements: int) -> float:
        return elements * element_bytes(self._run.dtype) / self._kernels.copy_rate


class DiskTime:
    """Seconds of the disk for its part of the phases, and for the rest after the last update."""

    def __init__(self, server: Forecast, machine: Machine) -> None:
        rates = machine.disk
        reading = server.parameters_read_bytes / rates.shared_read_rate
        rotating = server.states_read_bytes + server.written_bytes - server.written_pinned_bytes
        # Buffers are filled ahead of the backward pass, while the disk has little to do.
        ahead = min(server.state_buffer_bytes, server.states_read_bytes)
        self.forward = reading + ahead / rates.read_rate
        updating = (rotating - ahead) / rates.mixed_rate + server.written_pinned_bytes / rates.write_rate
        self.backward = reading + updating
        self.last_record = min(server.chunk_record_bytes, server.written_bytes) / rates.write_rate
        self._most_following = server.tail_share * updating

    def following(self, behind: float, forward: float) -> float:
        """Return the seconds of a step's updates that follow under the next forward, as its tail.

        Args:
            behind: seconds that the disk is behind with at the end of backward.
            forward: seconds that a forward takes without a wait for the disk.
        """
        return max(0.0, min(behind, self._most_following, forward - self.forward))
