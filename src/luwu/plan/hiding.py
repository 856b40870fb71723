"""Number of tokens from which a worker's computation hides copies, updates and the disk.

The unit is tokens a step and worker, T. With F flop/s sustained and P parameters in a block, a forward takes 2PT/F
seconds, a backward 4PT/F, and the recompute of checkpointing another 2PT/F. What goes on beside them takes time in
proportion to P, whatever T is. So each condition has the form T >= F * (seconds a parameter) / (flop a parameter and
token). Attention and everything but matrix products are left out: they only make the computation longer.

| what | beside | seconds a parameter | hidden from |
|---|---|---|---|
| pull, 2 bytes over B bytes/s | forward | 2/B | T >= F/B |
| pull and push, each way at once | backward | 2/B | T >= F/3B |
| both pulls | forward and backward | 4/B | T >= F/2B |
| update, R parameters/s | backward, where gradients are | 1/R | T >= F/6R |
| disk: 2 bytes read in forward; 12 read and 12 written in backward, less what stays in memory | each | - | the larger |

Beside LoRA adapters all else is frozen: gradients, updates and states are next to nothing, and a backward takes 2PT/F
less, because the matrices have no gradients.

Where not every step is a commit point (`--durable`), updates and what the disk reads for them are beside the next
step's forward instead, and what it writes is beside all of that step.

The bytes on the disk are AdamW's in bfloat16; the design of arXiv 2409.00918 has 14 and 14. F/2B is a bound: below it
no order of copies is hidden, because there is more to copy than time to compute. From F/B on two buffers are enough.
Between them a part of the blocks must be on the GPU before forward begins, and it cannot be there before the last
step's updates.
"""

from __future__ import annotations

from dataclasses import dataclass

FORWARD_FLOP = 2
"""Flop of a forward for each parameter and token."""
INPUT_GRADIENT_FLOP = 2
"""Flop of a backward for each parameter and token: the gradients of activations."""
WEIGHT_GRADIENT_FLOP = 2
"""Flop of a backward for each trained parameter and token: the parameters' own gradients."""


@dataclass(frozen=True)
class Compute:
    """A worker's computation.

    Attributes:
        flops: rate that matrix products sustain, flop a second.
        active: share of a block's parameters that a token passes; 1 without experts.
        recompute: True if a backward computes the forward again.
        trained: True unless the block's parameters are frozen.
    """

    flops: float
    active: float = 1.0
    recompute: bool = True
    trained: bool = True

    @property
    def backward_flop(self) -> int:
        """Flop of a backward for each active parameter and token."""
        weights = WEIGHT_GRADIENT_FLOP if self.trained else 0
        return INPUT_GRADIENT_FLOP + weights + (FORWARD_FLOP if self.recompute else 0)

    def tokens(self, seconds: float, flop: int) -> float:
        """Tokens that take ``seconds`` for each parameter of a block, at ``flop`` a parameter and token."""
        return seconds * self.flops / (flop * self.active)


@dataclass(frozen=True)
class Needs:
    """Seconds for each parameter of the model.

    Attributes:
        down: seconds of one pull to one worker.
        up: seconds of its push.
        update: seconds of the server's work in backward, memory traffic included.
        disk_forward: seconds of the disk in forward.
        disk_backward: seconds of the disk in backward, reads and writes together.
        update_forward: seconds of the server's work in forward, where updates settle then.
        disk_late: seconds of the disk in forward or backward.
    """

    down: float
    up: float
    update: float
    disk_forward: float
    disk_backward: float
    update_forward: float = 0.0
    disk_late: float = 0.0

    @property
    def disk(self) -> float:
        """Seconds of the disk in the whole step."""
        return self.disk_forward + self.disk_backward + self.disk_late


@dataclass(frozen=True)
class Thresholds:
    """Tokens a step and worker from which on each is hidden.

    Attributes:
        pull: copies in forward.
        backward: copies both ways in backward.
        average: copies over the whole step; a bound, see above.
        server: updates.
        disk: reads and writes.
    """

    pull: float
    backward: float
    average: float
    server: float
    disk: float

    @property
    def copies(self) -> float:
        """Tokens from which on copies are hidden in both phases."""
        return max(self.pull, self.backward)

    @property
    def parts(self) -> dict[str, float]:
        """Tokens by name."""
        return {"copies": self.copies, "server": self.server, "disk": self.disk}

    @property
    def everything(self) -> float:
        """Tokens from which on all are hidden."""
        return max(self.parts.values())

    @property
    def bottleneck(self) -> str:
        """Name of the part that needs the most tokens."""
        return max(self.parts, key=lambda name: self.parts[name])

    def exposed(self, tokens: float) -> list[str]:
        """Return the names of the parts that this number of tokens does not hide."""
        return [name for name, least in self.parts.items() if tokens < least]


def thresholds(compute: Compute, needs: Needs) -> Thresholds:
    """Compute the conditions of the table."""
    backward = compute.backward_flop
    return Thresholds(
        pull=compute.tokens(needs.down, FORWARD_FLOP),
        backward=compute.tokens(max(needs.down, needs.up), backward),
        average=compute.tokens(max(2 * needs.down, needs.up), FORWARD_FLOP + backward),
        server=max(compute.tokens(needs.update, backward), compute.tokens(needs.update_forward, FORWARD_FLOP)),
        disk=max(
            compute.tokens(needs.disk_forward, FORWARD_FLOP),
            compute.tokens(needs.disk_backward, backward),
            compute.tokens(needs.disk, FORWARD_FLOP + backward),
        ),
    )


def offload_ratio(compute: Compute, rate: float, element_bytes: int = 2) -> float:
    """Least P/h, a layer's parameters to its width, at which copies of layers' inputs are hidden for any T.

    A layer's input is T * h elements, copied beside 2PT flop of forward: P/h >= F/B in bfloat16. Inputs come back in
    backward beside the pulls; where T >= F/B holds as well, its 6PT flop hide both.

    Args:
        compute: computation of a worker.
        rate: rate of its link to the host's memory, bytes a second each way.
        element_bytes: bytes of an element of activations.
    """
    return compute.tokens(element_bytes / rate, FORWARD_FLOP)
