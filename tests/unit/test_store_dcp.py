"""A store goes to FSDP2 with its optimizer states and back, and training goes on as if it had stayed."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tests.unit.pretrained import build, save
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard

import luwu
import luwu.store.dcp_output as dcp_output
from luwu.errors import CheckpointError, ConfigError
from luwu.models.importing import import_pretrained
from luwu.optim.kinds import torch_optimizers
from luwu.store.dcp_output import cut, export_dcp
from luwu.store.dcp_source import DcpReader
from luwu.store.dcp_tensor import SavedPiece
from luwu.store.exporting import export_safetensors
from luwu.store.values import StoredValues, moment_names

LR = 1e-2
SETTINGS = {"lr": LR, "weight_decay": 0.1, "betas": (0.9, 0.99), "eps": 1e-7}


@pytest.fixture
def one_rank() -> Iterator[None]:
    """A process group of one rank, for FSDP2."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def batch(step: int) -> Tensor:
    return torch.randint(0, 65, (2, 12), generator=torch.Generator().manual_seed(step))


def train_here(store: Path, run: Path, family: str, steps: int) -> list[float]:
    losses = []
    with luwu.open(run, stores=[store], memory="64MiB") as session:
        model = luwu.parallelize(build(family), session)
        optimizer = luwu.AdamW(model, **SETTINGS)
        for step in range(session.step, session.step + steps):
            loss = model(input_ids=batch(step), labels=batch(step)).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


class Sharded:
    """The same model with FSDP2 and torch's AdamW, its values not the store's."""

    def __init__(self, family: str, flatten: bool = False, groups: int = 1) -> None:
        self.model = build(family, seed=99)
        for layer in self.model.transformer.h if family == "gpt2" else self.model.model.layers:
            fully_shard(layer)
        fully_shard(self.model)
        every = list(self.model.parameters())
        parts = [every[part::groups] for part in range(groups)]
        self.optimizer = torch.optim.AdamW([{"params": part} for part in parts], lr=0.5)
        self.options = StateDictOptions(flatten_optimizer_state_dict=flatten)

    def state(self) -> dict[str, Any]:
        return {
            "model": get_model_state_dict(self.model),
            "optim": get_optimizer_state_dict(self.model, self.optimizer, options=self.options),
        }

    def load(self, folder: Path) -> None:
        state = self.state()
        dcp.load(state, checkpoint_id=folder)
        set_model_state_dict(self.model, state["model"])
        set_optimizer_state_dict(self.model, self.optimizer, state["optim"], options=self.options)

    def train(self, first: int, steps: int) -> list[float]:
        losses = []
        for step in range(first, first + steps):
            loss = self.model(input_ids=batch(step), labels=batch(step)).loss
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            losses.append(loss.item())
        return losses


@pytest.mark.parametrize(("family", "flatten", "groups"), [("gpt2", False, 1), ("llama", True, 2)])
def test_training_goes_on_in_fsdp2_and_back_here(
    family: str, flatten: bool, groups: int, tmp_path: Path, one_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dcp_output, "PIECE_ELEMENTS", 100)  # several pieces to a tensor
    monkeypatch.setattr(dcp_output, "FILE_BYTES", 200_000)  # several files
    save(family, tmp_path / "in")
    store = tmp_path / "store"
    import_pretrained(tmp_path / "in", [store])
    train_here(store, tmp_path / "run", family, 2)
    report = export_dcp([store], tmp_path / "dcp", settings=SETTINGS)
    assert report.step == 2
    assert report.files == len(list((tmp_path / "dcp").glob("*.distcp"))) > 1

    sharded = Sharded(family, flatten, groups)
    sharded.load(tmp_path / "dcp")
    group = sharded.optimizer.param_groups[-1]
    assert (group["lr"], group["weight_decay"], group["betas"], group["eps"]) == tuple(SETTINGS.values())
    with StoredValues([store]) as values:
        loaded = sharded.state()
        for place in values.places():
            held = values.read(place, 0, place.parameter.numel, states=True)
            name = place.parameter.name
            state = sharded.optimizer.state[dict(sharded.model.named_parameters())[name]]
            assert state["step"] == 2
            for mine, theirs in (
                (held.exact(), loaded["model"][name]),
                (held.moments[0], state["exp_avg"]),
                (held.moments[1], state["exp_avg_sq"]),
            ):
                assert torch.equal(mine, theirs.full_tensor().reshape(-1)), name

    there = sharded.train(2, 3)
    dcp.save(sharded.state(), checkpoint_id=tmp_path / "back")
    expected = train_here(store, tmp_path / "run", family, 3)
    assert there == pytest.approx(expected, rel=1e-6)

    if not flatten:
        back = tmp_path / "imported"
        report_back = import_pretrained(tmp_path / "back", [back], model_folder=tmp_path / "in")
        assert report_back.step == 5
        with StoredValues([back]) as values:
            assert set(values.counts) == {5}
        here = train_here(back, tmp_path / "run2", family, 3)
        assert here == pytest.approx(sharded.train(5, 3), rel=1e-6)


@pytest.mark.parametrize("kind", [luwu.Adam, luwu.Adagrad, luwu.AdamW8bit])
def test_states_of_other_optimizers_go_out_and_come_in(kind: Any, tmp_path: Path, one_rank: None) -> None:
    save("gpt2", tmp_path / "in")
    stores = [tmp_path / "store"], [tmp_path / "back"]
    import_pretrained(tmp_path / "in", stores[0], optimizer=kind.kind)
    with luwu.open(tmp_path / "run", stores=stores[0], memory="64MiB") as session:
        model = luwu.parallelize(build("gpt2"), session, optimizer=kind)
        optimizer = kind(model, lr=LR)
        for step in range(2):
            model(input_ids=batch(step), labels=batch(step)).loss.backward()
            optimizer.step()
    export_dcp(stores[0], tmp_path / "dcp", settings={"lr": LR})
    sharded = Sharded("gpt2")
    sharded.optimizer = torch_optimizers()[kind.kind](sharded.model.parameters())
    sharded.load(tmp_path / "dcp")
    assert sharded.optimizer.param_groups[0]["lr"] == LR
    import_pretrained(tmp_path / "dcp", stores[1], model_folder=tmp_path / "in", optimizer=kind.kind)
    with StoredValues(stores[0]) as before, StoredValues(stores[1]) as after:
        assert (after.step, after.counts) == (2, before.counts)
        parameters = dict(sharded.model.named_parameters())
        for place in before.places():
            mine = before.read(place, 0, place.parameter.numel, states=True)
            back = after.read(place, 0, place.parameter.numel, states=True)
            assert torch.equal(mine.parameters, back.parameters)
            state = sharded.optimizer.state[parameters[place.parameter.name]]
            for name, moment in zip(moment_names(before.manifest), mine.moments, strict=True):
                assert torch.equal(moment, state[name].full_tensor().reshape(-1))
            if kind is not luwu.AdamW8bit:  # which rounds again
                assert all(map(torch.equal, mine.moments, back.moments))


def test_optimizers_that_torch_has_not_are_refused(tmp_path: Path) -> None:
    save("gpt2", tmp_path / "in")
    import_pretrained(tmp_path / "in", [tmp_path / "lion"], optimizer="lion")
    with pytest.raises(ConfigError, match=r"optimizer lion: expected one whose states torch has .*export safetensors"):
        export_dcp([tmp_path / "lion"], tmp_path / "dcp")
    import_pretrained(tmp_path / "in", [tmp_path / "store"])
    with pytest.raises(ConfigError, match="momentum: AdamW has no such setting; it has lr, betas, eps, weight_decay"):
        export_dcp([tmp_path / "store"], tmp_path / "dcp", settings={"momentum": 0.9})
    export_dcp([tmp_path / "store"], tmp_path / "dcp")
    with pytest.raises(ConfigError, match="has optimizer states, which a store for lion does not take"):
        import_pretrained(tmp_path / "dcp", [tmp_path / "other"], model_folder=tmp_path / "in", optimizer="lion")
    with pytest.raises(ConfigError, match=r"optimizer: expected one of adagrad, .* found 'rmsprop'"):
        import_pretrained(tmp_path / "in", [tmp_path / "other"], optimizer="rmsprop")


def test_a_bfloat16_store_exports_its_masters(tmp_path: Path) -> None:
    model = save("llama", tmp_path / "in")
    import_pretrained(tmp_path / "in", [tmp_path / "store"], dtype="bfloat16")
    export_dcp([tmp_path / "store"], tmp_path / "dcp")
    reader = DcpReader(tmp_path / "dcp")
    reader.prefix = "model."
    for name, value in model.state_dict().items():
        assert torch.equal(reader.read_range(name, 0, value.numel()), value.reshape(-1))


def test_buffers_go_out_and_come_in(tmp_path: Path) -> None:
    model = save("resnet", tmp_path / "in")
    import_pretrained(tmp_path / "in", [tmp_path / "store"])
    export_dcp([tmp_path / "store"], tmp_path / "dcp")
    import_pretrained(tmp_path / "dcp", [tmp_path / "back"], model_folder=tmp_path / "in")
    export_safetensors([tmp_path / "back"], tmp_path / "out")
    loaded = type(model).from_pretrained(tmp_path / "out").state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("shape", [(), (7,), (5, 4), (3, 50), (2, 3, 40), (2, 3, 4, 5), (0, 4)])
def test_pieces_cover_a_tensor_in_its_order(shape: tuple[int, ...]) -> None:
    tensor = torch.arange(int(torch.tensor(shape).prod()) if shape else 1).view(shape)
    flat = []
    for piece in cut(shape, 10):
        assert piece.numel <= 10
        index = tuple(slice(first, first + size) for first, size in zip(piece.offsets, piece.sizes, strict=True))
        flat.append(tensor[index].reshape(-1))
    assert torch.equal(torch.cat(flat), tensor.reshape(-1))


def test_columns_that_ranks_saved_are_put_together(tmp_path: Path) -> None:
    """Pieces are saved as tensor parallelism saves them: their rows do not follow each other."""
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        StorageMeta,
        TensorProperties,
        TensorStorageMetadata,
    )

    whole = torch.randn(6, 8, 3)
    chunks, storage = [], {}
    with (tmp_path / "a.distcp").open("wb") as file:
        for corner, size in (((0, 0, 0), (4, 5, 3)), ((0, 5, 0), (4, 3, 3)), ((4, 0, 0), (2, 8, 3))):
            part = whole[tuple(slice(first, first + count) for first, count in zip(corner, size, strict=True))].clone()
            first = file.tell()
            torch.save(part.contiguous(), file)
            chunks.append(ChunkStorageMetadata(torch.Size(corner), torch.Size(size)))
            info = dcp_output._StorageInfo("a.distcp", first, file.tell() - first)
            storage[MetadataIndex("x", corner)] = info
    kinds = {"x": TensorStorageMetadata(TensorProperties(), whole.shape, chunks)}
    metadata = Metadata(kinds, storage_data=storage, storage_meta=StorageMeta())
    (tmp_path / ".metadata").write_bytes(dcp_output.pickle.dumps(metadata))
    reader = DcpReader(tmp_path)
    for first, count in ((0, 144), (10, 50), (100, 44), (17, 1)):
        assert torch.equal(reader.read_range("x", first, count), whole.reshape(-1)[first : first + count])
    chunks.pop()
    (tmp_path / ".metadata").write_bytes(dcp_output.pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match="cover elements 90 to 110 once, found 6 elements"):
        DcpReader(tmp_path).read_range("x", 90, 20)


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A folder with a model in ``in`` and a checkpoint of it in ``dcp``."""
    save("gpt2", tmp_path / "in")
    import_pretrained(tmp_path / "in", [tmp_path / "store"])
    export_dcp([tmp_path / "store"], tmp_path / "dcp")
    return tmp_path


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        import_pretrained(folder / "dcp", [folder / "other"], model_folder=folder / "in")
    return str(caught.value)


def test_damaged_checkpoints_are_named(exported: Path) -> None:
    data = exported / "dcp" / "__0_0.distcp"
    whole = data.read_bytes()
    weights = next(iter(DcpReader(exported / "dcp")._pieces_of("model.transformer.h.0.mlp.c_fc.weight")))
    weights._locate()
    raw = bytearray(whole)
    raw[weights._data_offset + 9] ^= 2
    data.write_bytes(raw)
    assert "tensor model.transformer.h.0.mlp.c_fc.weight: expected" in refusal(exported)
    assert "found checksum" in refusal(exported)
    data.write_bytes(whole[: len(whole) // 2])
    assert "__0_0.distcp at offset" in refusal(exported)
    data.unlink()
    assert "__0_0.distcp" in refusal(exported)
    (exported / "dcp" / ".metadata").write_bytes(b"no pickle")
    assert ".metadata: cannot be read" in refusal(exported)


def test_a_description_that_would_take_all_memory_is_refused(tmp_path: Path) -> None:
    """Python's reader takes memory for every number below that of an object, so two numbers may take gigabytes."""
    with io.BytesIO() as file:
        torch.save(torch.zeros(3), file)
        honest = zipfile.ZipFile(file)
        with zipfile.ZipFile(tmp_path / "piece", "w", zipfile.ZIP_STORED) as archive:
            for name in honest.namelist():
                content = honest.read(name)
                if name.endswith("data.pkl"):
                    content = content[:-1] + b"r" + (1 << 30).to_bytes(4, "little") + content[-1:]
                archive.writestr(name, content)
    length = (tmp_path / "piece").stat().st_size
    piece = SavedPiece("w", tmp_path / "piece", 0, length, (0,), (3,), torch.float32)
    with pytest.raises(CheckpointError, match="a description that asks for memory without end; copy or save"):
        piece.fill(torch.empty(3), 0, (3,))


def test_a_checkpoint_of_another_model_is_refused(exported: Path) -> None:
    save("llama", exported / "in")
    assert "expected the model's parameters such as model.embed_tokens.weight" in refusal(exported)


def test_a_killed_export_keeps_finished_files(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dcp_output, "FILE_BYTES", 100_000)

    def kill(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_dcp([exported / "store"], exported / "again", progress=kill)
    assert not (exported / "again" / ".metadata").exists()
    kept = len(list((exported / "again").glob("*.distcp")))
    assert kept > 0
    report = export_dcp([exported / "store"], exported / "again")
    assert (report.kept, report.files) == (kept, len(list((exported / "again").glob("*.distcp"))))
    import_pretrained(exported / "again", [exported / "other"], model_folder=exported / "in")
    export_safetensors([exported / "other"], exported / "out")
    same = (exported / "out" / "model.safetensors").read_bytes()
    export_safetensors([exported / "store"], exported / "plain")
    assert (exported / "plain" / "model.safetensors").read_bytes() == same
    with pytest.raises(ConfigError, match="holds another export"):
        export_dcp([exported / "store"], exported / "again", settings={"lr": 1.0})
