"""Import and export hold parts of large parameters only, whichever blocks they lie in and whether they train."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import luwu
import luwu.store.exporting as exporting
from luwu.core.manifest import DEFAULT_CHUNK_ELEMENTS
from luwu.store.checkpoint import CheckpointReader
from luwu.store.dcp_output import export_dcp
from luwu.store.dcp_source import DcpReader, DcpSource
from luwu.store.exporting import export_safetensors
from luwu.store.importing import import_values
from luwu.store.outputs import Output
from luwu.store.sources import CheckpointSource
from luwu.store.values import StoredValues
from luwu.worker.layout import describe

WIDE = 1200


def model() -> nn.Sequential:
    """Frozen and trainable parameters by turns, some of them larger than a chunk, one block with both."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(600, WIDE), nn.Linear(WIDE, 5), nn.Linear(5, 500), nn.Linear(500, WIDE))
    layers[0].weight.requires_grad_(False)
    layers[2].requires_grad_(False)
    return layers


class Watched:
    """The most elements that were read, and bytes that were written, at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read = self.written = 0
        for kind in (CheckpointReader, DcpReader):
            monkeypatch.setattr(kind, "read_range", self._reading(kind.read_range))
        monkeypatch.setattr(Output, "write", self._writing(Output.write))

    def _reading(self, read):  # type: ignore[no-untyped-def]
        def watched(reader: object, name: str, first: int, count: int) -> Tensor:
            self.read = max(self.read, count)
            return read(reader, name, first, count)

        return watched

    def _writing(self, write):  # type: ignore[no-untyped-def]
        def watched(output: Output, data: memoryview) -> int:
            self.written = max(self.written, len(data))
            return write(output, data)

        return watched


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    """A checkpoint of the model, and a store that was made from it."""
    values = {name: value.detach().clone() for name, value in model().state_dict().items()}
    save_file(values, tmp_path / "model.safetensors")
    return tmp_path


def bring_in(folder: Path, watched: Watched | None = None) -> None:
    manifest = describe(model(), [nn.Linear])
    with CheckpointReader(folder / "model.safetensors") as reader:
        source = CheckpointSource(reader, manifest)
        if watched is not None:
            watched.read = 0
        import_values(source, manifest, [folder / "store"])


def test_no_more_than_a_chunk_is_read_or_written_at_once(imported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    monkeypatch.setattr(exporting, "PIECE_ELEMENTS", 1 << 30)
    bring_in(imported, watched)
    assert DEFAULT_CHUNK_ELEMENTS // 4 < watched.read <= DEFAULT_CHUNK_ELEMENTS < 600 * WIDE
    export_safetensors([imported / "store"], imported / "out")
    assert DEFAULT_CHUNK_ELEMENTS < watched.written <= 4 * DEFAULT_CHUNK_ELEMENTS
    expected = load_file(imported / "model.safetensors")
    found = load_file(imported / "out" / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_frozen_parameters_have_no_states_out_or_in(imported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bring_in(imported)
    with luwu.open(imported / "run", stores=[imported / "store"], memory="64MiB") as session:
        layers = luwu.parallelize(model(), session, blocks=[nn.Linear])
        optimizer = luwu.AdamW(layers, lr=1e-2)
        for step in range(3):
            torch.manual_seed(step)
            layers(torch.randn(3, 600)).square().sum().backward()
            optimizer.step()
    export_dcp([imported / "store"], imported / "dcp")
    names = {name for name in DcpReader(imported / "dcp").all_names() if name.endswith(".exp_avg")}
    trained = {name for name, value in model().named_parameters() if value.requires_grad}
    assert names == {f"optim.state.{name}.exp_avg" for name in trained}
    watched = Watched(monkeypatch)
    manifest = describe(model(), [nn.Linear])
    report = import_values(DcpSource(imported / "dcp", manifest), manifest, [imported / "back"])
    assert watched.read <= DEFAULT_CHUNK_ELEMENTS
    assert report.step == 3
    with StoredValues([imported / "store"]) as before, StoredValues([imported / "back"]) as after:
        assert (after.step, after.counts) == (3, before.counts)
        assert set(before.counts) == {0, 3}
        for place in before.places():
            mine = before.read(place, 0, place.parameter.numel, states=True)
            theirs = after.read(place, 0, place.parameter.numel, states=True)
            assert torch.equal(mine.parameters, theirs.parameters)
            assert all(map(torch.equal, mine.moments, theirs.moments))
            assert len(mine.moments) == (2 if place.parameter.name in trained else 0)
