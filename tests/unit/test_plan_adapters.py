"""Plans of LoRA adapters beside a frozen model: what is trained, moved, kept and computed, and what is refused."""

from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tests.unit.test_plan_measured import MACHINE, settings
from tests.unit.test_plan_models import CONFIGS, OTHERS, folder_of
from typer.testing import CliRunner

from luwu.cli.main import app
from luwu.errors import ConfigError
from luwu.models.pretrained import build_causal_on_meta
from luwu.models.shapes import gpt_shape, matrices
from luwu.plan.advice import compute_of, thresholds_of
from luwu.plan.choices import Choices
from luwu.plan.measured.planning import command, plan_here
from luwu.plan.model_presets import find_model
from luwu.plan.planning import make_plan
from luwu.plan.report import as_json
from luwu.plan.requests import make_request
from luwu.probe.kernel_times import measure_kernels
from luwu.worker.layout import describe

RANK = 16
ONE_MACHINE = {"machine": "desktop", "gpu": "rtx-4090", "ram": "64GiB", "disk": "4TB@7GB/s"}
RUN = {"model": "llama-3.1-8b", "seq": 2048, "batch": 16, "micro_batch": 4}


def plan(**changes):
    return make_plan(make_request(Choices(**(ONE_MACHINE | RUN | {"lora_rank": RANK} | changes))))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2", "opt", "gpt_neox", "qwen3"])
def test_adapters_have_as_many_parameters_and_blocks_as_those_of_peft(kind, tmp_path):
    folder = folder_of(kind, (CONFIGS | OTHERS)[kind] | {"vocab_size": 64}, tmp_path)
    model = build_causal_on_meta(folder, vocabulary=1, seq=2)
    with torch.device("meta"):
        model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear"))
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    shape = replace(find_model(str(folder)), lora_rank=4)
    assert shape.trained_parameters == trained
    assert shape.parameters == pytest.approx(sum(parameter.numel() for parameter in model.parameters()), rel=1e-3)
    blocks = describe(model).blocks
    frozen = [block.elements for block in blocks if not block.trainable]
    assert shape.block_elements() == pytest.approx(frozen, rel=0.02)
    assert shape.adapter_elements() == pytest.approx([b.elements for b in blocks if b.trainable], rel=0.1)  # padded


def test_attention_of_luwu_s_own_model_has_one_matrix_of_inputs():
    shape = gpt_shape(2, 64, 1, sequence=32, vocabulary=256)
    assert matrices(shape) == [(192, 64, 1.0), (64, 64, 1.0), (256, 64, 1.0), (64, 256, 1.0)]


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


def test_only_products_with_matrices_have_a_shorter_backward():
    shape = gpt_shape(3, 256, 4, sequence=4096, vocabulary=256, biases=False)
    matrices_flop = 3 * 2 * 12 * 256**2 + shape.head_flop_per_token()
    whole, adapters = (each.step_flop_per_token(recompute=False) for each in (shape, replace(shape, lora_rank=4)))
    assert whole - adapters == matrices_flop
    assert adapters > 2 * matrices_flop  # attention has no matrices, and at this length it is most of the work


def test_json_has_the_number_of_trained_parameters():
    model = as_json(plan())["model"]
    assert model["trained_parameters"] == plan().request.model.trained_parameters < model["parameters"]


def test_experts_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"^lora-rank: expected a model without experts, found mixtral-8x7b with 8"):
        plan(model="mixtral-8x7b")


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
