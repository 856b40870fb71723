"""Plans of LoRA adapters beside a frozen model: what is trained, moved, kept and computed, and what is refused."""

from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from luwu.cli.main import app
from luwu.errors import ConfigError
from luwu.plan.model_presets import read_config
from luwu.models.shapes import gpt_shape, matrices, products
from luwu.plan.advice import compute_of, thresholds_of
from luwu.plan.choices import Choices
from luwu.plan.measured.planning import command, plan_here
from luwu.plan.planning import make_plan
from luwu.plan.requests import make_request
from luwu.probe.kernel_times import measure_kernels
from tests.unit.test_plan_measured import MACHINE, settings

RANK = 16
ONE_MACHINE = {"machine": "desktop", "gpu": "rtx-4090", "ram": "64GiB", "disk": "4TB@7GB/s"}
RUN = {"model": "llama-3.1-8b", "seq": 2048, "batch": 16, "micro_batch": 4}


def plan(**changes):
    return make_plan(make_request(Choices(**(ONE_MACHINE | RUN | {"lora_rank": RANK} | changes))))


def test_adapters_have_as_many_parameters_as_those_of_peft(tmp_path):
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
        model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules="all-linear"))
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    shape = replace(read_config(tmp_path), lora_rank=4)
    assert shape.trained_parameters == trained
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_matrices_multiply_as_much_as_the_products():
    for experts in (1, 4):
        shape = replace(gpt_shape(2, 256, 4, sequence=32, vocabulary=256), experts=experts, gated=True)
        work = [sum(columns * inner * share for columns, inner, share in each(shape)) for each in (matrices, products)]
        assert work[0] == pytest.approx(work[1])


def test_a_frozen_parameter_has_no_state_and_is_never_written():
    found, whole = plan(), plan(lora_rank=None)
    model = found.request.model
    frozen = model.parameters - model.trained_parameters
    assert 2 * frozen < found.disk_bytes < 2.2 * frozen
    assert found.commits.written_bytes < 16 * model.trained_parameters
    assert whole.disk_bytes > 10 * found.disk_bytes
    assert found.server.states_read_bytes == 0


def test_a_step_pulls_all_and_pushes_the_adapters_alone():
    found = plan(**dict.fromkeys(ONE_MACHINE), cluster="desktops", form="dtype", aggregation="none", workers=2)
    model = found.request.model
    assert found.step.link_bytes["worker, down"] == 2 * 2 * model.parameters
    assert found.step.link_bytes["worker, up"] == 2 * model.trained_parameters


def test_matrices_without_gradients_take_a_shorter_backward():
    found, whole = plan(), plan(lora_rank=None)

    def phase(of, name):
        return next(phase for phase in of.step.phases if phase.name == name).parts["compute"]

    assert phase(found, "forward") > phase(whole, "forward")  # adapters come on top
    assert phase(found, "backward") < 0.95 * phase(whole, "backward")
    assert compute_of(found.request).backward_flop == compute_of(whole.request).backward_flop - 2
    assert thresholds_of(found).disk < thresholds_of(whole).disk


def test_gradients_on_the_gpu_are_those_of_the_adapters():
    found = plan()
    assert found.worker.gpu["gradients"] == 2 * sum(found.request.model.adapter_parameters())


def test_a_plan_of_this_machine_updates_the_adapters_alone():
    whole = gpt_shape(4, 256, 4, sequence=32, vocabulary=256, biases=False)
    adapters = replace(whole, lora_rank=RANK)
    plans = [plan_here(settings(), shape, MACHINE, 1e12) for shape in (whole, adapters)]
    assert plans[1].server.written_bytes < 0.3 * plans[0].server.written_bytes
    assert plans[1].step.part("server") < 0.3 * plans[0].step.part("server")
    assert command(plans[0], None) is not None and command(plans[1], None) is None


def test_kernels_of_frozen_matrices_are_timed_without_their_gradients():
    shape = gpt_shape(1, 64, 1, sequence=64, vocabulary=256, biases=False)
    found = measure_kernels(replace(shape, lora_rank=4), "float32", 2, None, 1, 0.001)
    assert found.layer_backward > 0 and found.root_forward > 0
    assert all(rate > 0 for rate in found.products.values())


@pytest.mark.parametrize("rank", [0, -1, 4096])
def test_a_rank_that_makes_no_sense_is_refused(rank):
    with pytest.raises(ConfigError, match=r"^lora-rank: expected 1 to 4095, less than the model's width, found"):
        plan(lora_rank=rank)


@pytest.mark.parametrize("flags", [["--peers"], ["--layout", "1x1x2"]])
def test_what_is_worked_out_for_full_training_alone_is_refused(flags):
    choices = ["--model", "llama-3.1-8b", "--cluster", "desktops", "--workers", "2", "--lora-rank", "8"]
    found = CliRunner().invoke(app, ["plan", *choices, *flags])
    assert found.exit_code == 2
    assert "expected none beside --lora-rank" in found.output


def test_the_plan_names_the_adapters():
    flags = [part for name, value in ONE_MACHINE.items() for part in (f"--{name}", value)]
    found = CliRunner().invoke(app, ["plan", "--model", "llama-3.1-8b", *flags, "--batch", "4", "--lora-rank", "16"])
    assert found.exit_code == 0
    assert "8.07B parameters, of them 41.9M in adapters of rank 16" in found.output
