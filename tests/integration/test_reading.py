"""`luwu generate`, `luwu eval` and `luwu train --eval-every` as a user runs them, over real stores."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import asdict, replace

import pytest
import torch
from tests.documented_keys import check_keys
from tests.unit.corpora import story, tokenizer_file
from transformers import AutoModelForCausalLM, LlamaConfig
from typer.testing import CliRunner

from harness.training import SMALL_RUN, finish, metrics, start_run
from luwu.cli.main import app
from luwu.data.tokenizer import FileTokenizer
from luwu.models.generation import Sampling
from luwu.models.importing import import_pretrained
from luwu.store.opening import open_reader
from luwu.store.run_record import read_record
from luwu.train.reading import find_readable
from luwu.train.writing import write
from luwu.worker import layout
from luwu.worker.layout import lay_out as layout_of

pytestmark = pytest.mark.slow


def luwu(*arguments):
    """Run a command in this process: exit status, standard output, standard error."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def train(folder, run, *flags):
    code, output, error = finish(start_run(folder, run, "--data", "stories", "--steps", "6", *flags), 200)
    assert code == 0, error
    return output, metrics(folder, run)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A text, and a run that measured on its way."""
    folder = tmp_path_factory.mktemp("reading")
    (folder / "stories").write_text("".join(map(story, range(40))))
    (folder / "settings.toml").write_text(SMALL_RUN)
    output, rows = train(folder, "run", "--eval-every", "2")
    (folder / "output").write_text(output)
    (folder / "rows").write_text(json.dumps(rows))
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A model in a folder, the same in a store over two folders, and its twin in memory."""
    folder = tmp_path_factory.mktemp("llama")
    vocabulary = FileTokenizer(tokenizer_file(folder / "llama" / "tokenizer.json")).vocabulary
    config = LlamaConfig(
        vocab_size=vocabulary + 5, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, eos_token_id=vocabulary - 1, initializer_range=0.5,
    )  # fmt: skip
    torch.manual_seed(4)
    twin = AutoModelForCausalLM.from_config(config).eval()
    twin.save_pretrained(folder / "llama")
    stores = [folder / "a", folder / "b"]
    import_pretrained(folder / "llama", stores)
    return folder, stores, twin


def test_measuring_on_the_way_changes_no_bit(folder):
    measured = json.loads((folder / "rows").read_text())
    assert [row["step"] for row in measured if "validation_loss" in row] == [2, 4, 6]
    assert f"validation loss {measured[-1]['validation_loss']:.3f} nats" in (folder / "output").read_text()
    assert "step 4: validation loss" in (folder / "output").read_text()
    _, rows = train(folder, "other", "--workers", "2")
    assert [row["loss"] for row in rows] == [row["loss"] for row in measured]
    assert ["validation_loss" in row for row in rows] == [False] * (len(rows) - 1) + [True]  # the end measures it


def test_a_run_is_measured_as_its_end_measured_it(folder):
    code, output, error = luwu("eval", folder / "run", "--json")
    assert code == 0, error
    found = json.loads(output)
    check_keys("eval", found)
    assert f"validation loss {found['loss']:.3f} nats" in (folder / "output").read_text()
    assert found["step"] == 6 and found["windows"] == 8 and found["seq"] == 32 and found["tokens"] == 256
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    code, output, _ = luwu("eval", folder / "run", "--batch", 3)
    assert code == 0 and f"loss {found['loss']:.4f} nats per byte, {found['bits_per_byte']:.4f} bits" in output


def test_a_run_writes_texts_that_their_seeds_repeat(folder):
    code, output, error = luwu("generate", folder / "run", "--length", 30, "--prompt", "In story 7", "--top-k", 5)
    assert code == 0, error
    assert output.startswith("In story 7") and len(output) > len("In story 7") + 5
    assert (code, output, error) == luwu(
        "generate", folder / "run", "--length", 30, "--prompt", "In story 7", "--top-k", 5
    )
    code, several, error = luwu(
        "generate", folder / "run", "--length", 30, "--prompt", "In story 7", "--top-k", 5, "--samples", 2
    )
    assert code == 0, error
    first, second = several.split("--- 2 of 2\n")
    assert first == "--- 1 of 2\n" + output and second.startswith("In story 7") and second != output
    code, output, error = luwu("generate", folder / "run", "--length", 40)  # a prompt of its own
    assert code == 0, error


@pytest.mark.timeout(400)  # a run, and five commands
def test_a_store_is_read_by_the_run_that_it_knows(folder, llama, tmp_path):
    asked = ("--length", 12, "--prompt", "In story 7")
    assert luwu("generate", folder / "run" / "store", *asked) == luwu("generate", folder / "run", *asked)
    # This store was imported without a tokenizer, and then trained with one.
    shutil.copytree(llama[0] / "llama", tmp_path / "llama", ignore=shutil.ignore_patterns("tokenizer.json"))
    import_pretrained(tmp_path / "llama", [tmp_path / "store"])
    code, _, error = luwu("generate", tmp_path / "store", *asked)
    assert code == 2 and "found none; put it there" in error and "name the folder of a run" in error
    (tmp_path / "settings.toml").write_text(
        '[run]\nbatch = 2\nworkers = 1\nmemory = "64MiB"\n[data]\nvalidation_windows = 1\n[sample]\nlength = 4\n'
    )
    flags = [
        "--data",
        str(folder / "stories"),
        "--model",
        "llama",
        "--tokenizer",
        str(llama[0] / "llama"),
        "--seq",
        "32",
    ]
    code, _, error = finish(start_run(tmp_path, "run", *flags, "--store", "store", "--steps", "1"), 200)
    assert code == 0, error
    code, output, error = luwu("generate", tmp_path / "store", *asked)
    assert code == 0 and output.startswith("In story 7"), error
    assert (code, output, error) == luwu("generate", tmp_path / "run", *asked)
    code, output, error = luwu("store", "info", tmp_path / "store")
    assert "LlamaForCausalLM" in output and f"{tmp_path / 'run'} on " in output and "data stories" in output
    code, output, error = luwu("store", "info", folder / "run" / "store")
    assert "the GPT of luwu train: 2 layers, 32 wide, 2 heads, sequences of 32 tokens" in output


def test_an_imported_model_writes_what_transformers_writes(llama):
    _, stores, twin = llama
    tokenizer = FileTokenizer(llama[0] / "llama")
    prompt = tokenizer.encode(["the hen"])[0]
    expected = twin.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)[0].tolist()
    code, output, error = luwu("generate", *stores, "--prompt", "the hen", "--length", 20, "--temperature", 0)
    assert code == 0, error
    assert output == tokenizer.decode(expected[: len(prompt)]) + printed(tokenizer, expected[len(prompt) :])


def printed(tokenizer, tokens):
    """Return the text that appears on a terminal."""
    from luwu.core.words import printable

    return printable(tokenizer.decode(tokens)) + "\n"


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_every_choice_of_rows_inside_a_block_writes_the_same(llama, temperature):
    readable = find_readable(llama[1])
    samples = 3 if temperature else 1
    texts = []
    for micro_batch in (None, 1):
        with readable_again(readable).open(memory="64MiB", micro_batch=micro_batch) as model:
            taken: list[list[int]] = []
            sampling = Sampling(temperature, top_k=7, seed=3)
            write(model, readable.vocabulary, [1, 2, 3], 12, sampling, samples, taken.append)
        texts.append(taken)
    assert texts[0] == texts[1] and 0 < len(texts[0]) <= 12
    assert all(len(drawn) == samples and max(drawn) < readable.vocabulary for drawn in texts[0])


def readable_again(readable):
    """The same once more: a model lives in one session."""
    return find_readable(readable.stores)


def test_an_imported_model_is_measured_as_torch_measures_it(llama, folder):
    _, stores, twin = llama
    code, output, error = luwu("eval", *stores, "--data", folder / "stories", "--seq", 16, "--windows", 6, "--json")
    assert code == 0, error
    found = json.loads(output)
    tokenizer = FileTokenizer(llama[0] / "llama")
    text = (folder / "stories").read_text()[:400]
    tokens = torch.tensor(tokenizer.encode([text])[0][: 6 * 16 + 1])
    with torch.no_grad():
        logits = twin(tokens[:-1].view(6, 16)).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[1:])
    assert found["loss"] == pytest.approx(float(expected), rel=1e-5)
    whole = (folder / "stories").read_text()
    share = (len(whole.encode()) + 1) / (len(tokenizer.encode([whole])[0]) + 1)
    assert found["bits_per_byte"] == pytest.approx(found["loss"] / share / math.log(2), rel=1e-3)


def test_a_store_is_read_in_the_blocks_and_the_dtype_of_its_import(llama, folder, tmp_path):
    import_pretrained(llama[0] / "llama", [tmp_path], dtype="bfloat16", blocks=["model.layers.1"], optimizer="lion")
    code, output, error = luwu("eval", tmp_path, "--data", folder / "stories", "--seq", 16, "--windows", 4)
    assert code == 0 and "step 0, 4 sequences of 16 tokens" in output, error
    code, _, error = luwu("generate", tmp_path, "--length", 3)
    assert code == 0, error


@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("blocks", [None, ["model.layers.1"]])
def test_embeddings_and_heads_are_read_in_the_blocks_that_the_store_has(llama, tmp_path, monkeypatch, outer, blocks):
    with monkeypatch.context() as patched:
        patched.setattr(layout, "lay_out", lambda *args, **_: layout_of(*args, outer=outer))
        import_pretrained(llama[0] / "llama", [tmp_path], blocks=blocks)
    _, manifest = open_reader([tmp_path])
    names = [block.name for block in manifest.blocks]
    assert ("lm_head" in names) == outer
    with find_readable([tmp_path]).open() as model, torch.no_grad():
        assert [block.name for unit in model.module._luwu_runtime.units for block in unit.blocks] == names
        model.predict(torch.arange(8).unsqueeze(0))


def test_another_models_tokenizer_is_told(llama, folder, tmp_path):
    smaller = LlamaConfig.from_pretrained(llama[0] / "llama", vocab_size=40, eos_token_id=2)
    AutoModelForCausalLM.from_config(smaller).save_pretrained(tmp_path / "in")
    (tmp_path / "in/tokenizer.json").write_bytes((llama[0] / "llama/tokenizer.json").read_bytes())
    import_pretrained(tmp_path / "in", [tmp_path / "store"])
    for arguments in (
        ["eval", "--data", folder / "stories", "--seq", 16],
        ["generate", "--prompt", "hen", "--length", 3],
    ):
        code, _, error = luwu(arguments[0], tmp_path / "store", *arguments[1:])
        assert code == 2 and "tokenizer: expected tokens below 40, as many as the model has, found " in error, error


def test_a_store_that_is_in_use_says_what_to_do(folder):
    with find_readable([folder / "run"]).open():
        code, _, error = luwu("generate", folder / "run")
    assert code == 1
    assert "run is in use: the store at" in error and "stop it with Ctrl-C" in error and "--eval-every" in error


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["generate", "{run}/nothing"], "expected a run folder or a store, found no such folder"),
        (["eval", "{run}/.."], "found neither config.toml nor manifest.json"),
        (["generate", "{run}/alone"], "found one that was not imported, and whose run folder is not there .it was "),
        (["generate", "{run}", "--prompt", ""], "--prompt: expected some text, found none"),
        (["generate", "{run}", "--prompt", "a", "--prompt-file", "b"], "expected it or --prompt-file, found both"),
        (["generate", "{run}", "--prompt-file", "{run}/no"], "--prompt-file: .* cannot be read as text"),
        (["generate", "{run}", "--prompt", 32 * "a"], "expected fewer than 32 tokens, the model's seq, found 32"),
        (["generate", "{run}", "--samples", "2", "--temperature", "0"], "samples: expected 1 at temperature 0"),
        (["generate", "{run}", "--device", "tpu"], "--device: expected cpu or cuda, found tpu"),
        (["eval", "{run}", "--seq", "33"], "seq: expected at most 32 tokens, .* found 33"),
        (["eval", "{run}", "--data", "{run}/no"], "no: cannot be read"),
        (["eval", "{run}", "--data", "{run}/short"], "expected at least 33 tokens for sequences of 32, found 4"),
        (["eval", "{llama}"], "--data: expected a text, as a store of luwu import has none"),
        (["generate", "{llama}", "--prompt", "hen", "--length", "62"], "length: expected at most 64 tokens"),
    ],
)
def test_what_cannot_be_is_refused(folder, llama, arguments, says):
    import re

    (folder / "run" / "short").write_text("abc")
    if not (folder / "run" / "alone").exists():
        shutil.copytree(folder / "run" / "store", folder / "run" / "alone")
        record = read_record(folder / "run" / "alone")
        (folder / "run" / "alone" / "run.json").write_text(
            json.dumps({"format": 1, **asdict(replace(record, folder="/gone"))})
        )
    named = [argument.format(run=folder / "run", llama="{llama}") for argument in arguments]
    stores = [str(store) for store in llama[1]]
    named = [part for argument in named for part in (stores if argument == "{llama}" else [argument])]
    code, output, error = luwu(*named)
    assert code == 2 and output == "", (output, error)
    assert re.search(says, error), error
