from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from luwu.cli.main import app

TEXT = "the quick brown fox jumps over the lazy dog\n" * 200


@pytest.fixture
def luwu(monkeypatch, tmp_path):
    """Runs a command in an empty folder: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        result = CliRunner().invoke(app, list(map(str, arguments)))
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout, result.stderr

    return run


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--heads", "3", "--hidden", "64"], ["model.hidden", "multiple of model.heads (3)", "found 64"]),
        (["--seq", "1"], ["model.seq", "found 1"]),
        (["--workers", "0"], ["run.workers", "found 0"]),
        (["--memory", "plenty"], ["run.memory", "8GiB", "'plenty'"]),
        (["--memory", "8"], ["run.memory", "with its unit", "'8'"]),
        (["--data", "missing.txt"], ["missing.txt", "cannot be read"]),
        (["--data", "empty.txt"], ["empty.txt", "found none"]),
        (["--data", "short.txt"], ["short", "at least 2580 bytes", "found 10 in "]),
        (["--tokenizer", "missing.json"], ["missing.json", "expected a tokenizer.json", "luwu tokenizer"]),
        (["--data", "empty.parquet", "--tokenizer", "."], ["tokenizer", "found none"]),
        (["--block-dtype", "float32"], ["--block-dtype", "PATTERN=DTYPE", "found 'float32'"]),
        (["--block-dtype", "blocks.0=half"], ["run.block_dtypes.blocks.0", "found 'half'"]),
        (["--device", "cuda"], ["run.device", torch.__version__, "--device cpu"]),
        (["--offload", "host"], ["run.offload", "expected a folder with run.device = cpu"]),
        (["--server", "luwu://localhost:1", "--memory", "1GiB"], ["--memory", "beside --server", "luwu server"]),
        (["--server", "luwu://localhost:1", "--snapshot-every", "2"], ["--snapshot-every", "beside --server"]),
        (["--server", "luwu://localhost:1", "--aggregate", "median"], ["--aggregate", "beside --server"]),
        (["--join", "luwu://localhost:1", "--steps", "2"], ["--steps", "expected only --run, --device", "--join"]),
        (["--join", "luwu://localhost:1", "--new-run"], ["--new-run", "expected only --run", "--join"]),
        (["--join", "localhost"], ["server 'localhost'", "such as luwu://"]),
        (["--join", "luwu://localhost:1", "--workers-here", "0"], ["--workers-here", "expected 1 to 4096", "found 0"]),
        (["--workers-here", "1"], ["--workers-here", "expected --listen or --join beside it"]),
        (["--listen", "here:7070"], ["run.workers_here: expected 0 to 1", "found none"]),
        (
            ["--listen", "here:7070", "--workers-here", "2"],
            ["run.workers_here: expected 0 to 1", "found 2"],
        ),
        (["--listen", "here:x", "--workers-here", "1"], ["address 'here:x'", "expected HOST:PORT"]),
        (["--server", "luwu://localhost:1", "--listen", ":1", "--workers-here", "1"], ["--listen", "beside --server"]),
        (["--key-file", "nosuch"], ["nosuch"]),
        (["--config", "missing.toml"], ["missing.toml", "cannot be read"]),
        (["--config", "wrong.toml"], ["model.depth", "no such setting"]),
        (
            ["--config", "median.toml", "--server", "luwu://localhost:1"],
            ["run.aggregate: expected none beside --server, found median", "luwu server"],
        ),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(luwu, tmp_path, monkeypatch, arguments, words):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("LUWU_JOB_KEY", "a" * 64)
    (tmp_path / "empty.txt").touch()
    (tmp_path / "empty.parquet").write_bytes(b"PAR1")
    (tmp_path / "short.txt").write_text("ten letter")
    (tmp_path / "wrong.toml").write_text("[model]\ndepth = 3\n")
    (tmp_path / "median.toml").write_text('[run]\naggregate = "median"\n')
    code, output, error = luwu("train", *arguments)
    assert code == 2
    assert output == ""
    assert error.startswith("luwu: ") and error.count("\n") == 1
    for word in words:
        assert word in error
    assert not (tmp_path / "runs").exists()


FILES = ["metrics.jsonl", "job.json", "run-id", "written.json", "config.toml", "loss.png", "job.key"]


@pytest.mark.timeout(60)  # whoever opens a pipe may wait for ever
@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "job.json", "run-id", "written.json", "config.toml", "loss.png", "job.key"]
)
@pytest.mark.parametrize(("make", "words"), [(os.mkfifo, "a pipe or a device"), (os.mkdir, "a folder")])
def test_what_stands_in_the_place_of_a_file_of_the_run_is_named(luwu, tmp_path, name, make, words):
    (tmp_path / "run").mkdir()
    make(tmp_path / "run" / name)
    code, _, error = luwu("train", "--run", "run", "--steps", "1")
    assert code == 2
    assert f"{tmp_path}/run/{name}: expected a file, found {words}; move it away" in " ".join(error.split())


def test_another_model_in_the_same_folder_is_refused(luwu, tmp_path):
    (tmp_path / "text").write_text(TEXT)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text(f'[model]\nlayers = 2\n[data]\npath = "{tmp_path}/text"\n')
    code, _, error = luwu("train", "--run", "run", "--layers", "3")
    assert code == 2
    assert "model.layers: the run was started with 2, found 3" in error


def test_flags_win_over_the_file_and_the_file_over_defaults(luwu, tmp_path):
    (tmp_path / "settings.toml").write_text("[model]\nhidden = 60\nheads = 7\n")
    assert "multiple of model.heads (7), found 60" in luwu("train", "--config", "settings.toml")[2]
    assert "found 61" in luwu("train", "--config", "settings.toml", "--hidden", "61")[2]


def test_help_names_every_flag(luwu):
    code, output, _ = luwu("train", "--help")
    assert code == 0
    for flag in (
        "data",
        "config",
        "workers",
        "steps",
        "run",
        "store",
        "memory",
        "layers",
        "hidden",
        "heads",
        "seq",
        "batch",
    ):
        assert f"--{flag}" in output
    for flag in (
        "lr",
        "dtype",
        "block-dtype",
        "seed",
        "device",
        "no-checkpoint",
        "tokenizer",
        "end-token",
        "text-field",
    ):
        assert f"--{flag}" in output


def test_the_launcher_never_imports_torch_or_what_prepares_data():
    code = (
        "import sys; import luwu.cli.main, luwu.launch.local, luwu.observe.plots, luwu.probe.machine; "
        "sys.exit(bool({'torch', 'tokenizers', 'pyarrow'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_imports_nothing_heavy():
    code = (
        "import sys; import luwu.cli.main; "
        "sys.exit(bool({'torch', 'grpc', 'numpy', 'simpy', 'matplotlib', 'luwu._native'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_tokenizer_is_trained_and_described(luwu, tmp_path):
    (tmp_path / "text").write_text(TEXT)
    code, output, error = luwu("tokenizer", "text", "--vocab-size", "280", "--out", "small.json")
    assert (code, error) == (0, "")
    assert "small.json: 280 tokens, trained on" in output
    assert "bytes per token on" in output and "of held-out text" in output
    code, output, _ = luwu("tokenizer", "text", "--vocab-size", "9000", "--out", "small.json")
    assert code == 0 and "too few different words for 9,000 tokens" in output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing"], ["missing", "cannot be read"]),
        (["text", "--vocab-size", "256"], ["at least 257 tokens, found 256"]),
        (["text", "--out", "no/folder.json"], ["no/folder.json", "make the folder first"]),
        (["text.jsonl"], ["text.jsonl:1", "'text'", "'body'", "--text-field"]),
    ],
)
def test_a_tokenizer_that_cannot_be_trained(luwu, tmp_path, arguments, words):
    (tmp_path / "text").write_text(TEXT)
    (tmp_path / "text.jsonl").write_text('{"body": "x"}\n')
    code, output, error = luwu("tokenizer", *arguments)
    assert code == 2 and output == ""
    assert error.startswith("luwu: ") and error.count("\n") == 1
    for word in words:
        assert word in error
    assert not list(tmp_path.glob("*.json"))


def test_help_of_a_command_is_that_of_its_flag(luwu):
    for command in ("train", "store"):
        code, output, _ = luwu("help", command)
        assert code == 0 and output == luwu(command, "--help")[1] and "--help" in output
