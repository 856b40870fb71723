"""Models of `luwu train --model`: causal models of transformers with the face of the GPT."""

import json

import pytest
import torch
from tests.unit.fake_session import FakeSession
from tests.unit.worker_models import assert_same_state

from harness.model_families import VOCABULARY, batch, make
from luwu import full_state_dict
from luwu.errors import CheckpointError, ConfigError
from luwu.launch.folder import check_model, default_folder, tokenizer_of_model
from luwu.launch.settings import build_settings
from luwu.models.generation import Sampling, generate
from luwu.models.language import CausalForward
from luwu.models.pretrained import build_causal_on_meta
from luwu.train.model import make_model

CPU = torch.device("cpu")


def run_model(path, session=None, *, vocabulary=VOCABULARY, **model):
    settings = build_settings({"model": {"path": str(path), "seq": 16, **model}})
    return make_model(settings, session or FakeSession(), CPU, vocabulary)


@pytest.fixture
def llama(tmp_path):
    torch.manual_seed(1)
    model = make("llama").eval()
    model.save_pretrained(tmp_path / "llama", max_shard_size="20KB")
    return tmp_path / "llama", model


@pytest.mark.parametrize("family", ["gpt2", "llama", "mixtral"])
def test_the_loss_is_the_librarys(family):
    torch.manual_seed(0)
    model = make(family).train()
    whole = batch(family, 0)["input_ids"]
    ids, targets = whole[:, :-1].contiguous(), whole[:, 1:].contiguous()
    predict = CausalForward(model, VOCABULARY)
    expected = model(input_ids=ids, labels=ids, shift_labels=targets).loss
    torch.testing.assert_close(predict(ids, targets).loss, expected)
    model.eval()
    alone = torch.nn.functional.cross_entropy(model(ids).logits.flatten(0, 1), targets.flatten())
    torch.testing.assert_close(predict(ids, targets).loss, alone)  # without a mixture's balancing


def test_a_folder_with_weights_is_where_it_starts(llama):
    folder, twin = llama
    model = run_model(folder)
    assert model.parameters == sum(parameter.numel() for parameter in twin.parameters())
    assert_same_state(full_state_dict(model.module), twin.state_dict(), 0.0)
    model.module.eval()
    ids = batch("llama", 0)["input_ids"]
    with torch.no_grad():
        assert torch.equal(model.predict(ids).logits, twin(ids).logits)


def test_a_configuration_alone_starts_from_the_seed(llama):
    folder, twin = llama
    states = [full_state_dict(run_model(folder / "config.json").module) for _ in range(2)]
    assert_same_state(states[0], states[1], 0.0)
    name = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(states[0][name], twin.state_dict()[name])


def test_samples_are_of_the_datas_tokens(llama):
    model = run_model(llama[0], vocabulary=5)
    model.module.eval()
    written = torch.cat([torch.tensor([1, 2]), *generate(model.predict, torch.tensor([1, 2]), 30, 16, Sampling())])
    assert len(written) == 32 and int(written.max()) < 5


def test_bad_models_are_named(llama, tmp_path):
    folder, _ = llama
    config = json.loads((folder / "config.json").read_text())

    def refused(change, words, vocabulary=VOCABULARY):
        path = tmp_path / "changed.json"
        path.write_text(json.dumps({name: value for name, value in {**config, **change}.items() if value is not None}))
        with pytest.raises(ConfigError, match=words):
            build_causal_on_meta(path, vocabulary, 16)

    refused({"vocab_size": 40}, r"changed\.json: vocab_size: expected at least 256 for bytes, found 40", 256)
    refused({}, "at least 1000 for the tokens of the data, found 67", 1000)
    refused({"max_position_embeddings": 8}, r"model\.seq: expected at most 8.*found 16")
    refused({"model_type": "nonesuch"}, "to describe a model of transformers .*nonesuch")
    refused({"model_type": None}, "model_type: expected the name of a kind of model, found None")
    refused({"model_type": "vit", "architectures": None}, "causal language model, found model_type 'vit'")
    refused({"architectures": ["LlamaForTokenClassification"]}, "such as LlamaForCausalLM, found LlamaForToken")
    (tmp_path / "changed.json").write_text("no json")
    with pytest.raises(ConfigError, match="found Expecting value"):
        build_causal_on_meta(tmp_path / "changed.json", 256, 16)
    with pytest.raises(ConfigError, match=r"model\.hidden: expected none beside model\.path, found 64"):
        run_model(folder, hidden=64, heads=4)
    first = sorted(folder.glob("*.safetensors"))[0]
    first.unlink()
    with pytest.raises(CheckpointError, match=f"shards are missing: {first.name}"):
        run_model(folder)


def test_where_a_model_is_looked_for(llama, tmp_path):
    check_model(llama[0])
    check_model(llama[0] / "config.json")
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(ConfigError, match=r"expected config\.json of a model or a folder with one, found no"):
            check_model(path)
    assert tokenizer_of_model(None) is tokenizer_of_model(str(llama[0])) is None
    (llama[0] / "vocab.json").touch()
    with pytest.raises(ConfigError, match=r"expected tokenizer\.json in .*llama, found a tokenizer in vocab\.json"):
        tokenizer_of_model(str(llama[0]))
    (llama[0] / "tokenizer.json").touch()
    assert tokenizer_of_model(str(llama[0])) == str(llama[0])
    assert str(default_folder("/data/poems.txt", str(llama[0]))) == "runs/llama-poems"
    assert str(default_folder("/data/poems.txt", str(llama[0] / "config.json"))) == "runs/llama-poems"
