"""The tokens that hide something, against the planner's own steps: hidden from there on, and exposed below."""

from dataclasses import replace

from luwu.launch.settings import build_settings
from luwu.models.shapes import gpt_shape
from luwu.plan.clusters import CLUSTERS, Disk
from luwu.plan.constants import GOODPUT_SHARE, HOST_MEMORY_SHARE, UPDATE_MEMORY_BYTES
from luwu.plan.gpus import GPUS
from luwu.plan.hiding import Compute, Needs, thresholds
from luwu.plan.luwu_step import OnDisk, Variant, step_time
from luwu.plan.machines import MACHINES
from luwu.plan.planning import Request
from luwu.plan.simulation.run import Scenario, simulate

NOTHING = Needs(down=0.0, up=0.0, update=0.0, disk_forward=0.0, disk_backward=0.0)
FOREVER = 1e30  # a rate that never binds


def copies(flops, rate):
    """Thresholds of bfloat16 over one link."""
    return thresholds(Compute(flops), replace(NOTHING, down=2 / rate, up=2 / rate))


IDEAL = replace(GPUS["rtx-4090"], matrix_flops=1e14, host_rate=2e10, units=0, memory_rate=FOREVER)
DEEP = replace(gpt_shape(400, 1024, 8, sequence=1, vocabulary=1), positions=0)
FAST = Disk("fast", FOREVER, FOREVER, FOREVER, 0.0, "a test")


def machine(host_rate=FOREVER, memory_rate=FOREVER):
    shared = MACHINES["desktop"]
    server = replace(shared.server, memory_rate=memory_rate, flops=FOREVER, disk=FAST)
    return replace(shared, gpu=replace(IDEAL, host_rate=host_rate), server=server)


def exposed(cluster, tokens, disk=None):
    """Seconds of a step's two phases that computation does not hide, as a share of computation."""
    step = step_time(DEEP, cluster, tokens, disk or OnDisk(0, 0, 0, 0), Variant())
    phases = [phase for phase in step.phases if phase.name in ("forward", "backward")]
    return sum(phase.seconds - phase.parts["compute"] for phase in phases) / step.part("compute")


def check_threshold(cluster, threshold, disk=None):
    """Nothing is exposed from the threshold on, and something just below it: the control."""
    assert exposed(cluster, round(1.01 * threshold), disk) == 0.0
    assert exposed(cluster, round(4 * threshold), disk) == 0.0
    assert exposed(cluster, round(0.98 * threshold), disk) > 0.0
    assert exposed(cluster, round(0.5 * threshold), disk) > 0.1


def test_the_planners_step_hides_copies_from_the_threshold_on():
    check_threshold(machine(host_rate=2e10), copies(1e14, 2e10).copies)


def test_the_planners_step_hides_the_server_from_the_threshold_on():
    rate = 8e10
    memory = UPDATE_MEMORY_BYTES.value / (HOST_MEMORY_SHARE.value * rate)
    check_threshold(machine(memory_rate=rate), thresholds(Compute(1e14), replace(NOTHING, update=memory)).server)


def test_the_planners_step_hides_the_disk_from_the_threshold_on():
    rate = 7e9
    slow = machine()
    slow = replace(slow, server=replace(slow.server, disk=replace(FAST, read_rate=rate)))
    needs = replace(NOTHING, disk_forward=2 / rate, disk_backward=28 / rate)
    check_threshold(slow, thresholds(Compute(1e14), needs).disk, OnDisk.everything(DEEP.parameters))


def test_no_ring_hides_copies_below_the_average():
    average = copies(1e14, 2e10).average
    for share, more in ((0.98, True), (1.02, False)):
        step = step_time(DEEP, machine(host_rate=2e10), round(share * average), OnDisk(0, 0, 0, 0), Variant())
        assert (2 * 2 * DEEP.parameters / 2e10 > step.part("compute")) == more


def test_a_played_run_hides_its_pulls_from_the_threshold_on():
    goodput, link = GOODPUT_SHARE.value, 1e10
    server = replace(CLUSTERS["paper"].server, link_rate=FOREVER, memory_rate=FOREVER, flops=FOREVER, disk=FAST)
    gpu = replace(IDEAL, host_rate=FOREVER)
    cluster = replace(CLUSTERS["paper"], gpu=gpu, workers=1, link_rate=link, server=server)
    threshold = copies(1e14, goodput * link).copies

    def over(share):
        """A step's time, in times of its computation."""
        tokens = round(share * threshold)
        run = {"batch": tokens, "workers": 1, "memory": 2**50, "dtype": "bfloat16", "device": "cuda"}
        request = Request(DEEP, cluster, build_settings({"run": run, "optimizer": {"name": "adamw"}}), form="int16")
        compute = 8 * DEEP.parameters * tokens / 1e14
        return simulate(request, Scenario(steps=2)).step_seconds / compute

    assert over(1.1) < 1.02
    assert over(0.5) > 1.2  # a quarter of the step is forward, which takes twice as long
