"""The parts of a step's time, whoever computes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from luwu.models.shapes import ModelShape


@dataclass(frozen=True)
class PhaseTime:
    """A stretch of a step in which several things go on at once; it lasts as long as it must."""

    name: str
    seconds: float
    parts: Mapping[str, float]
    """Seconds that each activity of the phase would take alone."""

    @property
    def binds(self) -> str:
        """Name of the part that takes the longest."""
        return max(self.parts, key=lambda name: self.parts[name]) if self.parts else self.name


@dataclass(frozen=True)
class StepTime:
    """An optimizer step of every worker on ``rows`` sequences."""

    system: str
    rows: int
    phases: tuple[PhaseTime, ...]
    link_bytes: Mapping[str, float] = field(default_factory=dict)
    """bytes a step by link and direction, such as "worker, down" """

    @property
    def seconds(self) -> float:
        """Seconds of the whole step."""
        return sum(phase.seconds for phase in self.phases)

    @property
    def binds(self) -> str:
        """Name of the part that takes the longest in the longest phase."""
        longest = max(self.phases, key=lambda phase: phase.seconds)
        return f"{longest.binds} in {longest.name}"

    def part(self, name: str) -> float:
        """Return the seconds that one part would take alone, over all phases."""
        return sum(phase.parts.get(name, 0.0) for phase in self.phases)

    @property
    def hidden_share(self) -> float:
        """The part of all traffic's and disks' time that something else hides."""
        compute = self.part("compute")
        others = sum(sum(phase.parts.values()) for phase in self.phases) - compute
        return 1.0 if others <= 0 else max(0.0, min(1.0, 1 - (self.seconds - compute) / others))

    def tokens_per_second(self, model: ModelShape) -> float:
        """Return the tokens per second of one worker."""
        return self.rows * model.sequence / self.seconds

    def utilisation(self, model: ModelShape, peak_flops: float, *, recompute: bool) -> float:
        """Share of a worker's peak; with recompute its flop count too, as papers that checkpoint often do."""
        return self.tokens_per_second(model) * model.step_flop_per_token(recompute=recompute) / peak_flops
