"""The run folder: everything a run leaves behind. The server locks it against a second launcher."""

from __future__ import annotations

import itertools
from importlib.util import find_spec
from pathlib import Path

from luwu.core.errors import ConfigError
from luwu.core.files import require_file
from luwu.core.room import NO_WAIT, Room
from luwu.core.settings import to_toml
from luwu.data.corpus import Corpus, Progress
from luwu.data.preparation import prepare
from luwu.data.source import find_text
from luwu.data.tokenizer import TOKENIZER_FILE, FileTokenizer
from luwu.launch.run_paths import RunPaths
from luwu.launch.settings import Settings, build_settings
from luwu.observe.metrics import read_metrics
from luwu.store.folders import MANIFEST_NAME, holds_part, no_store

MODEL_CONFIG_NAME = "config.json"

_WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin", ".pt", ".pth")
_OTHER_TOKENIZERS = ("tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "merges.txt")

DEFAULT_NAME = "python-stdlib"
"""Name of the run that learns from the standard library."""


class RunFolder(RunPaths):
    """A run folder, and what is in it. Raises ConfigError for a name that cannot be written down."""

    def require_files(self) -> None:
        """Refuse a folder, a pipe or a device in the place of a file of the run; raises ConfigError."""
        files = (self.config_path, self.metrics_path, self.job_path, self.id_path, self.written_path, self.key_path)
        for path in (*files, self.alerts_path, *self.plot_paths):
            require_file(path)

    def saved_id(self) -> str | None:
        """Return the run's id, which stays when its folder moves, or None; raises ConfigError if it cannot be read."""
        try:
            return self.id_path.read_text(encoding="utf-8").strip() or None
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ConfigError(
                f"{self.id_path}: expected the run's id, found {error.strerror}; give this user permission to read the "
                "file, or remove it: the run then takes its id from its store"
            ) from None
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"{self.id_path}: expected the run's id in UTF-8, found {error}; remove the file: the run then "
                "takes its id from its store"
            ) from None

    def steps_made(self) -> int:
        """Return the last step that metrics.jsonl knows; 0 if it has no row."""
        return self.last_steps()[0]

    def last_steps(self) -> tuple[int, int]:
        """Return the last step that metrics.jsonl knows, and the last one whose validation loss it has; 0 for none."""
        rows = read_metrics(self.metrics_path)
        validated = (row for row in rows if row.get("validation_loss") is not None)
        made, measured = (max((row["step"] or 0 for row in found), default=0) for found in (rows, validated))
        return made, measured

    def save_id(self, run_id: str, room: Room = NO_WAIT) -> None:
        """Write the run's id, whole or not at all."""
        if self.saved_id() != run_id:
            room.write_file(self.id_path, f"{run_id}\n")

    def saved_steps(self) -> int | None:
        """Return the steps that the run had in all at its last start, None if there was none; raises ConfigError."""
        saved = self.saved_settings()
        return None if saved is None else build_settings(saved).run.steps

    def stores(self, settings: Settings) -> list[Path]:
        """The folders of the run's store, if it is on this machine."""
        return [Path(store) for store in settings.run.stores] or [self.path / "store"]

    def require_stores(self, settings: Settings) -> list[Path]:
        """The folders of the run's store.

        Raises:
            ConfigError: the first of them holds no store. StoreFormatError: its manifest file is missing.
        """
        stores = self.stores(settings)
        if not (stores[0] / MANIFEST_NAME).is_file():
            if holds_part(stores[0]):
                raise no_store(stores)
            raise ConfigError(
                f"{self.path}: expected the run's store in {stores[0]}, found none: {MANIFEST_NAME} is missing "
                "there, and so is the rest; mount the disk or restore the folder; a run that was trained with --server "
                "has its store there"
            )
        return stores

    def save_settings(self, settings: Settings, room: Room = NO_WAIT) -> None:
        """Write config.toml, whole or not at all."""
        room.write_file(self.config_path, to_toml(settings), settings.file_mode)

    def load_corpus(self, settings: Settings, on_progress: Progress | None = None, room: Room = NO_WAIT) -> Corpus:
        """Return the corpus that the run was started with; for a new run, a corpus made from the data.

        Raises DataError.
        """
        data, seq = settings.data, settings.model.seq
        existing = Corpus.load(self.path) if self.config_path.exists() else None
        if existing is not None:
            if data.tokenizer is None or Path(data.tokenizer).exists():
                existing.check_tokenizer(data.tokenizer)
            existing.check_length(seq)
            return existing.verify_if_touched(on_progress, room)
        return prepare(
            find_text(data.path),
            self.path,
            FileTokenizer(data.tokenizer, data.end_token) if data.tokenizer is not None else None,
            text_field=data.text_field,
            validation_fraction=data.validation_fraction,
            seq=seq,
            on_progress=on_progress,
            room=room,
        )

    def log_path(self, rank: int) -> Path:
        """Return the path of a worker's log."""
        return self.path / f"worker-{rank}.log"

    def keep_log(self, rank: int) -> Path | None:
        """Rename a worker's log, so that another worker's does not overwrite it, and return where it is now.

        None: there is none, because a user has removed it.
        """
        log = self.log_path(rank)
        kept = next(path for number in itertools.count(1) if not (path := log.with_suffix(f".{number}.log")).exists())
        try:
            return log.rename(kept)
        except FileNotFoundError:
            return None

    @property
    def launcher_log_path(self) -> Path:
        """Return the path of the log of what has happened to the run's processes."""
        return self.path / "launcher.log"

    @property
    def template_log_path(self) -> Path:
        """Return the path of the log of the process that workers are forked from."""
        return self.path / "template.log"

    def attempts_path(self, rank: int) -> Path:
        """The file in which a worker notes its last attempts."""
        return self.path / f"worker-{rank}.attempts"

    def attempts_paths(self) -> dict[int, Path]:
        """Return the existing files of `attempts_path` by rank, for all workers that the run ever had."""
        found = {path.stem.removeprefix("worker-"): path for path in self.path.glob("worker-*.attempts")}
        return {int(rank): path for rank, path in found.items() if rank.isdecimal()}


def default_folder(data_path: str | None, model_path: str | None = None) -> Path:
    """Return the folder of a run that named none: runs/ and the names of its model, if it has one, and its data."""
    name = DEFAULT_NAME if data_path is None else Path(data_path).stem or "text"
    if model_path is None:
        return Path("runs", name)
    model = Path(model_path)
    folder = model.parent if model.name == MODEL_CONFIG_NAME else model
    return Path("runs", f"{folder.stem or 'model'}-{name}")


def tokenizer_of_model(path: str | None) -> str | None:
    """Return the folder of a model if it has a tokenizer; the model then learns its tokens.

    Raises:
        ConfigError: it has one that only other programs read.
    """
    folder = None if path is None else Path(path)
    if folder is None or not folder.is_dir():
        return None
    if (folder / TOKENIZER_FILE).is_file():
        return str(folder)
    found = next((name for name in _OTHER_TOKENIZERS if (folder / name).is_file()), None)
    if found is not None:
        raise ConfigError(
            f"model.path: expected {TOKENIZER_FILE} in {folder}, found a tokenizer in {found}; write it with "
            "save_pretrained of transformers' fast tokenizer, or name another with --tokenizer"
        )
    return None


def config_file(path: Path) -> Path:
    """Return the configuration of a model that is named by its folder or by the file itself."""
    return path / MODEL_CONFIG_NAME if path.is_dir() else path


def check_model(path: Path) -> None:
    """Check that a model's configuration exists, before anything is written; workers read it.

    Raises:
        ConfigError: it is not, or the package that reads it is missing.
    """
    file = config_file(path)
    if not file.is_file():
        raise ConfigError(
            f"model.path: expected {MODEL_CONFIG_NAME} of a model or a folder with one, found no {file}; check the path"
        )
    if find_spec("transformers") is None:
        raise ConfigError("model.path: needs the package transformers, found none; pip install transformers")


def has_weights(path: Path) -> bool:
    """Return True if a model's folder has weights, in any format; a file is only a configuration."""
    return path.is_dir() and any(file.name.endswith(_WEIGHTS) for file in path.iterdir())
