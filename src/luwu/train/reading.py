"""A run's model, or an imported one, opened to be read, for `luwu generate` and `luwu eval`.

Its blocks are pulled from the store as in training, so its size does not matter, and none of their values changes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from luwu.core.errors import ConfigError, StoreLockedError
from luwu.core.manifest import ROOT_NAME, Manifest
from luwu.data.corpus import Corpus
from luwu.data.tokenizer import TOKENIZER_FILE, FileTokenizer, Tokenizer
from luwu.launch.folder import RunFolder
from luwu.launch.settings import Settings, build_settings
from luwu.models.language import CausalForward
from luwu.models.pretrained import build_on_meta
from luwu.optim.choosing import optimizer_class
from luwu.optim.settings import OptimizerSettings
from luwu.session.local import DEFAULT_MEMORY, open_to_read
from luwu.session.local import open as open_session
from luwu.session.session import Session
from luwu.store.folders import MANIFEST_NAME, UNFINISHED_IMPORT_NAME, no_values, open_reader
from luwu.store.model_files import kept_buffers, kept_model_folder
from luwu.store.origin import require_model_files
from luwu.store.run_record import read_record
from luwu.store.snapshots import snapshot_folders
from luwu.store.values import require_whole
from luwu.train.devices import choose_device
from luwu.train.model import RunModel, make_model
from luwu.worker.layout import describe
from luwu.worker.parallelize import parallelize

LONGEST_SEQ = 1024
"""Most tokens of a sequence that an imported model is measured on, unless a flag says otherwise."""

GENERATION_CONFIG_NAME = "generation_config.json"


class Readable(ABC):
    """A model at rest.

    Attributes:
        name: name that the user gave.
        stores: folders of its store.
        settings: settings of the run; None: an imported model.
        manifest: manifest of the store.
        step: committed steps.
        tokenizer: makes tokens of text.
        vocabulary: tokens are below it.
        seq: tokens of a sequence: the run's, or what suits an imported model.
    """

    settings: Settings | None = None

    def __init__(self, name: Path, stores: list[Path], snapshot: int | None = None) -> None:
        """Look at the store; raises ConfigError where it has parts of parameters, as each of several servers' does."""
        self.name = name
        self.stores = snapshot_folders(stores, snapshot)
        self._of_snapshot = snapshot is not None
        reader, self.manifest = open_reader(self.stores)
        require_whole(
            self.stores[0], self.manifest, "train on one server, or save luwu.full_state_dict(model) in a worker"
        )
        if not reader.initialised:
            raise no_values(self.stores[0])
        self.step = int(reader.step)
        self.tokenizer: Tokenizer
        self.vocabulary: int
        self.seq: int

    @abstractmethod
    def prompt_tokens(self, text: str) -> list[int]:
        """Return a prompt's tokens as the model is used to them."""

    @abstractmethod
    def _build(self, session: Session, device: torch.device, micro_batch: int | None) -> RunModel: ...

    @contextmanager
    def open(
        self, *, memory: str | int | None = None, device: str | None = None, micro_batch: int | None = None
    ) -> Iterator[RunModel]:
        """Open the store and put the model into eval mode.

        Args:
            memory: the server's budget; None: the run's, or that of `luwu.open`.
            device: cpu or cuda; None: the run's, or cpu.
            micro_batch: rows that a block computes at a time.

        Raises:
            StoreLockedError: a run or another reader has the store open. Others: as `luwu.open` and `luwu.parallelize`.
        """
        settings = self.settings or Settings()
        wanted = settings.run.model_copy(update={"device": device} if device else {})
        where = choose_device(settings.model_copy(update={"run": wanted}), 0)
        budget = memory or (DEFAULT_MEMORY if self.settings is None else self.settings.run.memory)
        try:
            # Not in the run's folder: a store is locked by itself, and reading leaves nothing behind.
            with (
                TemporaryDirectory(prefix="luwu-") as scratch,
                self._session(scratch, budget) as session,
            ):
                model = self._build(session, where, micro_batch)
                model.module.eval()
                yield model
        except StoreLockedError as error:
            raise StoreLockedError(
                f"{self.name} is in use: {str(error).split(';')[0]}; wait for it to end, or stop it with Ctrl-C and "
                "resume it afterwards (luwu train --eval-every measures while it trains)"
            ) from error

    def _session(self, scratch: str, memory: str | int) -> Session:
        if self._of_snapshot:  # nobody writes to it
            return open_to_read(scratch, self.stores, memory)
        return open_session(scratch, stores=self.stores, memory=memory, rank=0, workers=1)


class ReadableRun(Readable):
    """A run of `luwu train`, read from its folder."""

    settings: Settings

    def __init__(self, folder: Path, snapshot: int | None = None, stores: list[Path] | None = None) -> None:
        run = RunFolder(folder)
        self.settings = build_settings(run.saved_settings() or {})
        stores = stores or run.require_stores(self.settings)
        super().__init__(folder, stores, snapshot)
        record, own = read_record(self.stores[0]), run.saved_id()
        if record is not None and own is not None and record.id != own:
            raise ConfigError(
                f"{folder}: expected the run's own store in {stores[0]}, found one that belongs to the run "
                f"{record.folder} now; name that run, or a snapshot of this one with --snapshot"
            )
        corpus = Corpus.load(run.path)
        if corpus is None:
            raise ConfigError(f"{folder}: expected corpus.json of the run's text, found none; start the run again")
        self.corpus = corpus
        self.tokenizer = corpus.tokenizer()
        self.vocabulary = corpus.vocabulary
        self.seq = self.settings.model.seq

    def prompt_tokens(self, text: str) -> list[int]:
        """Return the tokens of the text alone, as the run was trained."""
        return self.tokenizer.encode([text])[0]

    def _build(self, session: Session, device: torch.device, micro_batch: int | None) -> RunModel:
        changes = {"micro_batch": micro_batch, "offload": None}
        if device.type == "cpu":
            changes["device_memory"] = None
        changed = self.settings.run.model_copy(update=changes)
        return make_model(self.settings.model_copy(update={"run": changed}), session, device, self.vocabulary)


class ReadableImport(Readable):
    """A store that `luwu import` made, with the model's configuration and tokenizer beside it."""

    def __init__(self, name: Path, stores: list[Path], folder: Path, snapshot: int | None = None) -> None:
        super().__init__(name, stores, snapshot)
        self.folder = folder
        if not (folder / TOKENIZER_FILE).is_file():
            raise ConfigError(
                f"{name}: expected {TOKENIZER_FILE} among the model's files in {folder}, found none; put it there, as "
                "save_pretrained of transformers' fast tokenizer writes it, or name the folder of a run that has "
                "trained on it with a tokenizer"
            )
        self._tokenizer = FileTokenizer(folder)
        self.tokenizer = self._tokenizer
        self._module = build_on_meta(folder)
        config = self._module.config.get_text_config()
        self.vocabulary = min(self._tokenizer.vocabulary, int(config.vocab_size))
        self.seq = min(LONGEST_SEQ, getattr(config, "max_position_embeddings", None) or LONGEST_SEQ)

    def prompt_tokens(self, text: str) -> list[int]:
        """Return the tokens of the text after those that the model's tokenizer begins every text with."""
        return self._tokenizer.encode_prompt(text)

    def _build(self, session: Session, device: torch.device, micro_batch: int | None) -> RunModel:
        module, manifest = self._module, self.manifest
        if (self.folder / GENERATION_CONFIG_NAME).is_file():
            from transformers import GenerationConfig

            module.generation_config = GenerationConfig.from_pretrained(self.folder)
        dtype = getattr(torch, manifest.dtype)
        predict = CausalForward(module, self.vocabulary)
        parallelize(
            module,
            session,
            blocks=_blocks_of(module, manifest),
            optimizer=optimizer_class(OptimizerSettings.model_validate({"name": manifest.optimizer})),
            dtype=dtype,
            block_dtypes=_dtypes_of(manifest),
            device=device,
            micro_batch_size=micro_batch,
        )
        with kept_buffers(self.stores[0]) as buffers:
            for name, buffer in module.named_buffers():
                if buffers is not None and name in buffers.tensors:
                    buffer.copy_(buffers.read(name, 0, math.prod(buffer.shape)).view(buffer.shape))
        parameters = sum(parameter.numel for block in manifest.blocks for parameter in block.parameters)
        return RunModel(module, predict, parameters, dtype, device)


def find_readable(named: list[Path], snapshot: int | None = None) -> Readable:
    """Return the model in the named folders: of a run, or of a store that `luwu import` made; or its snapshot.

    Raises:
        ConfigError: there is no such folder, or it is neither, or has no such snapshot.
        Others: its files are damaged, see `luwu.errors`.
    """
    first = named[0]
    if not first.is_dir():
        raise ConfigError(f"{first}: expected a run folder or a store, found no such folder; check the path")
    if len(named) == 1 and RunFolder(first).config_path.is_file():
        return ReadableRun(first, snapshot)
    inside = first / "store"
    alone = len(named) == 1 and not (first / MANIFEST_NAME).is_file() and (inside / MANIFEST_NAME).is_file()
    stores = [inside] if alone else named
    if not (stores[0] / MANIFEST_NAME).is_file():
        raise ConfigError(
            f"{first}: expected a run folder of luwu train or a store of luwu import, found neither config.toml nor "
            f"{MANIFEST_NAME}; check the path"
        )
    if (stores[0] / UNFINISHED_IMPORT_NAME).exists():
        raise ConfigError(f"{first}: expected a whole store, found an import that was not finished; give it again")
    require_model_files(stores[0])
    folder = kept_model_folder(stores[0])
    if folder is None or not (folder / TOKENIZER_FILE).is_file():
        run = _run_of(stores[0])
        if run is not None:
            return ReadableRun(run, snapshot, stores)
    if folder is None:
        raise ConfigError(
            f"{first}: expected a store whose model is known, found one that was not imported, and whose run folder is "
            f"not there{_named_run(stores[0])}; name the run folder, or open the store in a script with luwu.open and "
            "luwu.parallelize"
        )
    return ReadableImport(first, stores, folder, snapshot)


def _run_of(store: Path) -> Path | None:
    """The folder of the run that trained a store, if it still exists."""
    record = read_record(store)
    if record is None:
        return None
    folder = RunFolder(Path(record.folder))
    return folder.path if folder.saved_id() == record.id and folder.config_path.is_file() else None


def _named_run(store: Path) -> str:
    record = read_record(store)
    return "" if record is None else f" (it was {record.folder} on {record.host})"


def _blocks_of(module: nn.Module, manifest: Manifest) -> list[str] | None:
    """The ``blocks`` of `luwu.parallelize` with which the model has those of the store.

    Large modules outside of the repeated ones become blocks without being named, but not in stores from before.
    """
    names = [block.name for block in manifest.blocks if block.name != ROOT_NAME]
    repeated = [name for name in names if name.rpartition(".")[2].isdigit()]
    for blocks in (None, repeated or None):
        found = describe(module, blocks, getattr(torch, manifest.dtype), block_dtypes=_dtypes_of(manifest))
        if [block.name for block in found.blocks] == [block.name for block in manifest.blocks]:
            return blocks
    return names or None


def _dtypes_of(manifest: Manifest) -> dict[str, torch.dtype]:
    """Return the dtypes of the blocks that have another one than the model."""
    return {block.name: getattr(torch, block.dtype) for block in manifest.blocks if block.dtype is not None}
