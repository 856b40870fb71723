"""A worker without torch: drives a session's endpoint with numpy, for tests of the server and the fabric."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from luwu.core.manifest import ROOT_NAME, BlockManifest, Manifest, ParameterManifest
from luwu.session.local import open as open_embedded
from luwu.session.session import Session

GROUP = (1e-2, 0.9, 0.999, 1e-8, 0.1)


def small_manifest(
    blocks: int = 4,
    elements: int = 5000,
    dtype: str = "float32",
    chunk_elements: int = 2048,
    optimizer: str = "adamw",
) -> Manifest:
    """A root of 64 elements and some blocks of one parameter each."""
    shapes = [(ROOT_NAME, 64)] + [(f"h.{index}", elements) for index in range(blocks)]
    return Manifest(
        dtype,
        chunk_elements,
        tuple(
            BlockManifest(name, True, (ParameterManifest(f"{name}.weight", (size,), 0, size),), size)
            for name, size in shapes
        ),
        optimizer,
    )


class NumpyWorker:
    """A float32 worker of `small_manifest`: its gradients are a pure function of (rank, step, block).

    With ``coarse`` they are multiples of 1/1024, whose sum is exact in fp32 and in fixed point alike.
    """

    def __init__(self, session: Session, manifest: Manifest, *, coarse: bool = False, kept: Sequence[str] = ()) -> None:
        self.coarse = coarse
        self.max_grad_norm: float | None = None
        self.session = session
        self.manifest = manifest
        self.fresh = session.attach(manifest, kept=kept)
        self.endpoint = session.endpoint
        self.arena = self.endpoint.register(self.endpoint.arena_bytes).view(np.float32)
        if self.fresh:
            self.initialise()

    def initialise(self) -> None:
        """Write the first values, as rank 0 does."""
        for number, block in enumerate(self.manifest.blocks):
            self.arena[: block.elements] = np.sin(np.arange(block.elements, dtype=np.float32) + number)
            self.endpoint.wait(self.endpoint.initialise(number, 0))
        self.endpoint.wait(self.endpoint.finish_initialise())
        self.session.initialised()

    def read(self, number: int) -> np.ndarray:
        """Pull a block and copy it out."""
        offset = self.endpoint.wait(self.endpoint.pull(number))
        elements = self.manifest.blocks[number].elements
        values = self.endpoint.window[offset : offset + 4 * elements].view(np.float32).copy()
        self.endpoint.release(number)
        return values

    def gradient(self, values: np.ndarray) -> np.ndarray:
        """This rank's gradient of a block with these values, at this step."""
        gradient = np.cos(values * 3 + self.session.step + self.session.rank)
        return np.round(gradient * 1024) / 1024 if self.coarse else gradient

    def give_up(self, blocks: int) -> None:
        """Run some blocks of a step, as an exception would leave it, and give it up."""
        self.endpoint.begin([GROUP], self.max_grad_norm)
        for number in reversed(range(len(self.manifest.blocks) - blocks, len(self.manifest.blocks))):
            values = self.read(number)
            self.arena[: values.size] = self.gradient(values)
            self.endpoint.push(number, 0)
        assert self.endpoint.wait(self.endpoint.commit(skip=True)) == 0
        self.session.count_step(False)

    def step(
        self,
        spoil: bool = False,
        groups: Sequence[tuple[float, float, float, float, float]] = (GROUP,),
        spoil_only: int | None = None,
    ) -> bool:
        """Run one step, with a gradient that is not finite in all blocks or in one; whether it was committed."""
        self.endpoint.begin(list(groups), self.max_grad_norm)
        for number in reversed(range(len(self.manifest.blocks))):
            values = self.read(number)
            gradient = self.arena[: values.size]
            gradient[:] = self.gradient(values)
            if spoil or number == spoil_only:
                gradient[0] = np.nan
            self.endpoint.wait(self.endpoint.push(number, 0))
        committed = self.endpoint.wait(self.endpoint.commit()) == 1
        self.session.count_step(committed)
        return committed


def die_after(run: Path, steps: int) -> None:
    """Train with clipping to this step, the server being in this process, and die when it was answered."""
    with open_embedded(run, memory="1MiB", rank=0, workers=1) as session:
        worker = NumpyWorker(session, small_manifest(blocks=20))
        worker.max_grad_norm = 1.0
        while session.step < steps:
            assert worker.step()
        os.kill(os.getpid(), signal.SIGKILL)
