"""Ways of blocks through the steps of a trace: flows, which Perfetto shows as arrows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from luwu.core.perfetto import Flow
from luwu.core.trace import Kind
from luwu.observe.spans import Span, seconds_of

STAGES = (
    Kind.PULL,
    Kind.READ,
    Kind.HAND_OUT,
    Kind.FORWARD,
    Kind.BACKWARD,
    Kind.PUSH,
    Kind.SUM,
    Kind.COLLECT,
    Kind.KEEP,
    Kind.READ_STATES,
    Kind.UPDATE,
    Kind.WRITE,
)
"""Kinds of records that are stages of a block's way through a step; the step's commit is its end."""


def flows_of(placed: Iterable[tuple[Span, str]], names: Sequence[str], zero: int) -> Iterator[Flow]:
    """Return the way of each block through each step, for each worker that pulled it: its stages in the order of time.

    Of a stage that works on a block chunk by chunk, the way goes through the chunk that was done last; a block of
    several chunks has ways of theirs, too. A block that is cut among several servers has a way through each.
    """
    shared: dict[tuple[str, int, int], list[tuple[Span, str]]] = defaultdict(list)
    of_workers: dict[tuple[int, int, int], list[tuple[Span, str]]] = defaultdict(list)
    commits: dict[str, list[tuple[Span, str]]] = defaultdict(list)
    servers: dict[tuple[int, int], set[str]] = defaultdict(set)
    for span, track in placed:
        if span.kind is Kind.COMMIT:
            commits[span.server].append((span, track))
            continue
        if span.kind not in STAGES or span.block is None:
            continue
        if span.server:
            servers[span.step, span.block].add(span.server)
        if span.worker is None:
            shared[span.server, span.step, span.block].append((span, track))
        else:
            of_workers[span.step, span.block, span.worker].append((span, track))
    for found in commits.values():
        found.sort(key=lambda commit: commit[0].step)
    for (step, block, worker), own in sorted(of_workers.items()):
        through = servers[step, block] or {""}
        for server in sorted(through):
            here = [stage for stage in own if stage[0].server in ("", server)]
            stages = [*_last_chunks([*here, *shared[server, step, block]])]
            end = f", {server}" if len(through) > 1 else ""
            yield from _flow(f"step {step}, {names[block]}, worker {worker}{end}", stages, commits[server], zero)
    for (server, step, block), stages in sorted(shared.items()):
        end = f", {server}" if len(servers[step, block]) > 1 else ""
        for chunk, own in _by_chunk(stages):
            yield from _flow(f"step {step}, {names[block]}, chunk {chunk}{end}", own, commits[server], zero)


def _flow(
    name: str, stages: Sequence[tuple[Span, str]], commits: Sequence[tuple[Span, str]], zero: int
) -> Iterator[Flow]:
    """Yield the flow through the stages of a step and the commit that ends it, where there are two or more."""
    step = stages[0][0].step
    whole = [*stages, *[commit for commit in commits if commit[0].step >= step][:1]]
    if len(whole) > 1:
        whole.sort(key=lambda stage: stage[0].begin)
        yield Flow(name, [(track, seconds_of(span.begin, zero)) for span, track in whole])


def _by_chunk(stages: Iterable[tuple[Span, str]]) -> Iterator[tuple[int, list[tuple[Span, str]]]]:
    """Yield each chunk's stages, where a block has several chunks."""
    found: dict[int, list[tuple[Span, str]]] = defaultdict(list)
    for span, track in stages:
        if span.chunk is not None:
            found[span.chunk].append((span, track))
    if len(found) > 1:
        yield from sorted(found.items())


def _last_chunks(stages: Iterable[tuple[Span, str]]) -> Iterator[tuple[Span, str]]:
    """Keep of each stage, each time that it was gone through, the span that ended last."""
    times: dict[tuple[Kind, int | None], int] = defaultdict(int)
    last: dict[tuple[Kind, int], tuple[Span, str]] = {}
    for span, track in sorted(stages, key=lambda found: found[0].begin):
        key = span.kind, times[span.kind, span.chunk]
        times[span.kind, span.chunk] += 1
        if key not in last or last[key][0].end < span.end:
            last[key] = span, track
    yield from last.values()
