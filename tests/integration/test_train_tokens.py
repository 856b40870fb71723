"""`luwu train` on tokens: the order of samples, the units that are told, and tokenizers that do not match."""

from __future__ import annotations

import json

import pytest
from tests.unit.corpora import story, tokenizer_file, write_jsonl

from harness.training import finish, metrics, start_run

pytestmark = pytest.mark.slow

SETTINGS = """
[model]
layers = 1
hidden = 16
heads = 2
seq = 32
[data]
path = "stories"
tokenizer = "tokenizer.json"
text_field = "story"
validation_windows = 4
[optimizer]
warmup_steps = 0
final_lr_fraction = 1.0
[run]
batch = 6
memory = "64MiB"
[sample]
length = 4
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Stories, a tokenizer and the settings of a small run."""
    folder = tmp_path_factory.mktemp("tokens")
    tokenizer_file(folder / "tokenizer.json")
    write_jsonl(folder / "stories/a.jsonl.gz", [{"story": story(number)} for number in range(40)])
    write_jsonl(folder / "stories/b.jsonl", [{"story": story(number)} for number in range(40, 60)] + [{"story": " "}])
    (folder / "settings.toml").write_text(SETTINGS)
    return folder


def train(folder, run, *flags):
    return finish(start_run(folder, run, *flags))


def losses(folder, run):
    return [row["loss"] for row in metrics(folder, run)]


@pytest.fixture(scope="module")
def whole(folder):
    """Output of a run without a break."""
    code, output, error = train(folder, "whole", "--workers", "1", "--steps", "8")
    assert code == 0, error
    return output


def test_losses_are_told_by_token_and_by_byte(folder, whole):
    assert "tokens of stories" in whole and "1 of 61 documents had no text" in whole
    line = next(line for line in whole.splitlines() if line.startswith("validation loss"))
    assert "nats per token (single tokens without context:" in line and line.endswith("bits per byte")
    corpus = json.loads((folder / "whole/corpus.json").read_text())
    nats, bits = float(line.split()[2]), float(line.split()[-4])
    assert bits == pytest.approx(nats / 0.693147 * corpus["validation_tokens"] / corpus["validation_bytes"], abs=2e-3)
    assert (folder / "whole/tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()


def test_another_number_of_workers_goes_on_with_the_same_samples_without_the_tokenizers_file(folder, whole):
    assert train(folder, "broken", "--workers", "1", "--steps", "4")[0] == 0
    tokenizer = folder / "tokenizer.json"
    away = tokenizer.rename(folder / "away.json")
    try:
        code, output, error = train(folder, "broken", "--workers", "2", "--steps", "8")
    finally:
        away.rename(tokenizer)
    assert code == 0, error
    assert "resuming after step 4 of 8" in output
    assert losses(folder, "broken") == pytest.approx(losses(folder, "whole"), rel=1e-4)


def test_a_run_keeps_its_tokenizer(folder, whole):
    other = tokenizer_file(folder / "other.json", merges=(("i", "n"),))
    code, _, error = train(folder, "whole", "--tokenizer", "other.json")
    assert code == 2 and "data.tokenizer: the run was started with" in error
    kept = (folder / "tokenizer.json").read_bytes()
    try:
        (folder / "tokenizer.json").write_bytes(other.read_bytes())
        code, _, error = train(folder, "whole")
        assert code == 2 and "expected the one that the corpus was prepared with (sha256 " in error
    finally:
        (folder / "tokenizer.json").write_bytes(kept)


def test_data_that_turns_out_bad_is_named(folder):
    write_jsonl(folder / "bad.jsonl", [{"story": "good"}, {"tale": "bad"}])
    code, _, error = train(folder, "bad", "--data", "bad.jsonl")
    assert code == 2
    assert error.startswith("luwu: data ") and "bad.jsonl:2: expected the field 'story', found 'tale'" in error
