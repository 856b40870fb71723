from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.unit.corpora import story, tokenizer_file, write_jsonl

from luwu.data.corpus import Corpus
from luwu.errors import ConfigError, DataError, WorkerLostError
from luwu.launch.folder import RunFolder
from luwu.launch.job import Job
from luwu.launch.preparing import prepare_corpus
from luwu.launch.settings import build_settings


@pytest.fixture
def folder(tmp_path):
    """A run folder with the job of a run on stories."""
    write_jsonl(tmp_path / "stories.jsonl", [{"text": story(number)} for number in range(100)])
    tokenizer_file(tmp_path / "tokenizer.json")
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    write_job(folder, tmp_path / "stories.jsonl")
    return folder


def write_job(folder, data):
    settings = build_settings({"data": {"path": data, "tokenizer": folder.path.parent / "tokenizer.json"}})
    Job(settings=settings, folder=str(folder.path), socket_path=None, launcher_pid=os.getpid()).write(folder.job_path)


def children():
    return Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()


def test_a_process_of_its_own_prepares_the_corpus(folder):
    told = []
    corpus = prepare_corpus(folder, lambda done, total: told.append(done / total), lambda: False)
    assert corpus == Corpus.load(folder.path) and corpus.documents == 100
    assert told and all(0 <= share <= 1 for share in told)


def test_it_can_be_stopped_and_leaves_nobody_behind(folder):
    before = children()
    assert prepare_corpus(folder, lambda done, total: None, lambda: True) is None
    assert set(children()) <= set(before)  # some of another test's may have ended meanwhile
    assert prepare_corpus(folder, lambda done, total: None, lambda: False) is not None


def test_a_run_that_has_begun_needs_its_data_no_more(folder):
    corpus = prepare_corpus(folder, lambda done, total: None, lambda: False)
    folder.config_path.touch()
    for name in ("stories.jsonl", "tokenizer.json"):
        (folder.path.parent / name).unlink()
    assert prepare_corpus(folder, lambda done, total: None, lambda: False) == corpus


def test_its_error_is_the_launchers(folder):
    write_job(folder, folder.path.parent / "missing")
    with pytest.raises(DataError, match="missing: cannot be read"):
        prepare_corpus(folder, lambda done, total: None, lambda: False)


def test_its_last_words_are_told_when_it_dies(folder):
    def kill():
        os.kill(int(children()[-1]), signal.SIGKILL)
        return False

    with pytest.raises(WorkerLostError, match=r"was killed by SIGKILL; the last lines of .*preparing\.log"):
        prepare_corpus(folder, lambda done, total: None, kill)
    folder.job_path.write_text("{}")
    with pytest.raises(ConfigError, match=r"job\.json: settings: Field required"):
        prepare_corpus(folder, lambda done, total: None, lambda: False)
