"""A large pass of an evaluation pulls each block once, whatever the blocks compute at a time."""

from __future__ import annotations

from contextlib import nullcontext
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from tests.unit.fake_session import FakeSession

import luwu.train.scoring as scoring
from harness.model_families import VOCABULARY, make
from luwu.core.division import divide
from luwu.core.manifest import BlockManifest, Manifest, ParameterManifest
from luwu.data.tokenizer import ByteTokenizer
from luwu.errors import ConfigError, DataError
from luwu.launch.folder import RunFolder
from luwu.launch.settings import Settings, build_settings
from luwu.server.folders import open_server
from luwu.train.evaluation import evaluate
from luwu.train.model import make_model
from luwu.train.reading import ReadableRun
from luwu.train.scoring import rows_together, score

CPU = torch.device("cpu")


def model_of(micro_batch):
    settings = build_settings(
        {"model": {"layers": 2, "hidden": 32, "heads": 2, "seq": 16}, "run": {"micro_batch": micro_batch}}
    )
    session = FakeSession()
    model = make_model(settings, session, CPU, 256)
    model.module.eval()
    return model, session.endpoint


TEXT = np.random.default_rng(0).integers(0, 256, 16 * 12 + 1).astype(np.uint8)


def test_the_end_of_a_run_says_how_far_it_is():
    settings = build_settings(
        {
            "model": {"layers": 2, "hidden": 32, "heads": 2, "seq": 16},
            "run": {"batch": 2, "workers": 1},
            "data": {"validation_windows": 4},
            "sample": {"length": 3},
        }
    )
    model = make_model(settings, FakeSession(), CPU, 256)
    corpus = Mock(validation=TEXT % 96 + 32, unit="byte", **{"tokenizer.return_value": ByteTokenizer()})
    reports = []
    evaluate(settings, model, Mock(rank=0, workers=1), corpus, CPU, reports.append)
    *stages, result = reports
    assert result["kind"] == "result"
    assert [(stage["text"], stage["detail"]) for stage in stages] == [
        ("validating", "2 of 4 sequences"),
        ("validating", "4 of 4 sequences"),
        *(("writing a sample", f"{done} of 3 bytes") for done in range(4)),
    ]


def test_each_pass_pulls_each_block_once_and_a_tied_table_for_either_end():
    found = {}
    for micro_batch, batch in ((None, 4), (2, 12), (5, 12)):
        model, endpoint = model_of(micro_batch)
        found[micro_batch, batch] = score(model, 3, TEXT, 1.0, seq=16, batch=batch)
        pulls = [block for what, block in endpoint.log if what == "pull"]
        table = 1
        assert all(pulls.count(block) == 12 // batch * (2 if block == table else 1) for block in set(pulls)), pulls
    losses = [each.loss for each in found.values()]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-6)
    assert {each.windows for each in found.values()} == {12}


def test_windows_are_limited_and_passes_are_as_large_as_memory_allows():
    model, _ = model_of(None)
    told = []
    found = score(model, 3, TEXT, 2.0, seq=16, windows=5, batch=2, on_progress=lambda *counts: told.append(counts))
    assert (found.step, found.windows, found.tokens) == (3, 5, 80)
    assert told == [(2, 5), (4, 5), (5, 5)]
    assert found.bits_per_byte == pytest.approx(found.loss / 2 / np.log(2))
    assert rows_together(model, 16) == 4096


@pytest.mark.parametrize("tiled", [True, False])
def test_the_first_pass_shows_whether_later_ones_may_be_large(tmp_path, monkeypatch, tiled):
    make("llama").config.save_pretrained(tmp_path)
    model = make_model(build_settings({"model": {"path": str(tmp_path), "seq": 16}}), FakeSession(), CPU, VOCABULARY)
    model.module.eval()
    monkeypatch.setattr(scoring, "LOGIT_BYTES", 2 * 16 * VOCABULARY * (4 + 4))
    if not tiled:
        model.module.lm_head.__class__ = type("Other", (torch.nn.Linear,), {})
    told = []
    with nullcontext() if tiled else pytest.warns(UserWarning, match="the logits of the whole batch at once"):
        score(model, 0, TEXT % VOCABULARY, 1.0, seq=16, windows=6, on_progress=lambda *counts: told.append(counts))
    assert told == ([(2, 6), (6, 6)] if tiled else [(2, 6), (4, 6), (6, 6)])


def test_what_is_too_long_or_too_short_is_refused():
    model, _ = model_of(None)
    with pytest.raises(ConfigError, match="seq: expected at most 16 tokens"):
        score(model, 0, TEXT, 1.0, seq=17)
    with pytest.raises(DataError, match=r"expected at least 17 tokens .* found 16"):
        score(model, 0, TEXT[:16], 1.0, seq=16)
    with pytest.raises(DataError, match=r"tokenizer: expected tokens below 256, .* found 300"):
        score(model, 0, np.full(40, 300, np.uint16), 1.0, seq=16)


def test_a_part_of_a_model_is_not_read(tmp_path):
    parameter = ParameterManifest("a.weight", (1 << 20,), 0, 1 << 20)
    whole = Manifest("float32", 1 << 18, (BlockManifest("a", True, (parameter,), 1 << 20),))
    open_server([tmp_path / "store"], divide(whole, 2).parts[0], 64 << 20, 1, 1).close()
    RunFolder(tmp_path).save_settings(Settings())
    with pytest.raises(ConfigError, match=r"is that of one of several servers: it has .*train on one server"):
        ReadableRun(tmp_path)
