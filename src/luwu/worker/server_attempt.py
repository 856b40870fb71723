"""An attempt at a step as the server sees it: begun with hyper-parameters, ended with this worker's one vote."""

from __future__ import annotations

from collections.abc import Callable

from luwu.core.errors import ConfigError, StepOrderError
from luwu.core.protocols import COMMITTED, VOID, HyperParameters, WorkerSession
from luwu.core.trace import Kind
from luwu.worker.loss_scale import LossScaler
from luwu.worker.profiler import TorchProfiler


class ServerAttempt:
    """Begins attempts with the server and ends them. ``scaler`` has the loss's scale if blocks are float16."""

    def __init__(self, session: WorkerSession, scaler: LossScaler | None) -> None:
        self._session = session
        self._endpoint = session.endpoint
        self._scaler = scaler
        self._hyper_parameters: Callable[[], list[HyperParameters]] | None = None
        self._segments: dict[int, list[tuple[int, int]]] = {}
        self._max_grad_norm: float | None = None
        self._begun_with: list[HyperParameters] = []
        self._vote: int | None = None  # the commit that was asked for and not answered
        self.begun = False
        """True once the model's first attempt has begun: its groups stay as they are."""

    def bind(
        self,
        hyper_parameters: Callable[[], list[HyperParameters]],
        segments: dict[int, list[tuple[int, int]]],
        max_grad_norm: float | None,
    ) -> None:
        """Take hyper-parameters from an optimizer; see `Runtime.bind_optimizer`."""
        if self.begun:
            raise ConfigError("optimizer: expected one for the model's life, found a second after the first step began")
        self._hyper_parameters = hyper_parameters
        self._segments = segments
        self._max_grad_norm = max_grad_norm

    @property
    def grad_norm(self) -> float | None:
        """Global norm before clipping of the last attempt's gradient; None without clipping, or if it was given up."""
        return self._endpoint.grad_norm

    @property
    def loss_scale(self) -> float:
        """Factor of the loss in this attempt, or in the next one; 1 without float16 blocks."""
        return 1.0 if self._scaler is None else self._scaler.scale

    @property
    def scales(self) -> bool:
        """True where the loss must be scaled, because blocks are float16."""
        return self._scaler is not None

    @property
    def workers(self) -> int:
        """Number of workers of the run."""
        return self._session.workers

    @property
    def ending(self) -> bool:
        """True from this worker's vote until the attempt's end."""
        return self._vote is not None

    def wait_durable(self) -> None:
        """Return when the last step that was answered is on the disk."""
        self._session.wait_durable()

    def hyper_parameters(self) -> list[HyperParameters]:
        """Return the present hyper-parameters; raises StepOrderError without an optimizer."""
        if self._hyper_parameters is None:
            raise StepOrderError(
                "forward with gradients before there is an optimizer: make one first, such as luwu.AdamW(model, ...), "
                "and give it to a trainer (transformers: optimizers=(optim, None)), or run the forward under "
                "torch.no_grad()"
            )
        return self._hyper_parameters()

    def settings_changed(self) -> bool:
        """Return True if the hyper-parameters have changed since the attempt began."""
        return self.hyper_parameters() != self._begun_with

    def begin(self, hyper_parameters: list[HyperParameters]) -> bool:
        """Begin an attempt; the first one tells the server the group of each parameter.

        Returns True where no order of pulls may be expected in it, see `Endpoint.begin`.
        """
        if not self.begun and len(hyper_parameters) > 1:
            for block, segments in self._segments.items():
                self._session.set_segments(block, segments)
        self.begun = True
        loss_scale = None if self._scaler is None else self._scaler.state
        forgets_order = self._endpoint.begin(hyper_parameters, self._max_grad_norm, loss_scale)
        self._session.trace.begin_attempt(
            self._session.step + 1, *self._endpoint.trace_request, start_profile=self._start_profile
        )
        self._begun_with = hyper_parameters
        return forgets_order

    def _start_profile(self) -> TorchProfiler | None:
        most_bytes = self._session.profile_bytes()
        return TorchProfiler(most_bytes) if most_bytes else None

    def wait_for_end(self, *, skip: bool) -> int:
        """Ask for the attempt's end, and return it; after an exception (Ctrl-C) call it again to wait on."""
        trace = self._session.trace
        begun = trace.begin()
        if self._vote is None:  # a worker has one vote in an attempt
            self._vote = self._endpoint.commit(skip)
        end = self._endpoint.wait(self._vote)
        self._vote = None
        trace.end(Kind.END, begun)
        trace.end_attempt()
        return end

    def count(self, end: int) -> bool:
        """Count an attempt by its end; return True if it was committed. A void one counts as none."""
        if end == VOID:
            return False
        committed = end == COMMITTED
        self._session.count_step(committed)
        if self._scaler is not None:
            self._scaler.count(end)
        return committed
