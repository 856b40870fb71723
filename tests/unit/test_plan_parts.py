"""Units, constants, networks, collectives and pipelines of the planner."""

import ast
import itertools
from pathlib import Path

import pytest

import luwu.plan
from luwu.core.units import count_text, memory_text, parse_bytes, parse_count, parse_rate, rate_text, seconds_text
from luwu.errors import ConfigError
from luwu.plan import constants, gpus
from luwu.plan.clusters import CLUSTERS, DISKS
from luwu.plan.collectives import Transfer, beside_compute, collective_seconds, link_bytes
from luwu.plan.constants import Constant
from luwu.plan.cost import PRICES, cost_of
from luwu.plan.networks import SWITCHES, SwitchModel, build_network
from luwu.plan.pipelines import SCHEDULES, PartSeconds, play

TABLES = {"constants.py", "gpus.py", "clusters.py", "cost.py", "networks.py", "chart.py", "units.py"}


@pytest.mark.parametrize(
    ("text", "rate"),
    [("100Gbps", 12.5e9), ("100 Gb/s", 12.5e9), ("12.5GB/s", 12.5e9), ("10Gbit/s", 1.25e9), ("2GiB/s", 2 * 2**30)],
)
def test_rates_come_in_bits_and_in_bytes(text, rate):
    assert parse_rate(text) == rate


@pytest.mark.parametrize("parse", [parse_rate, parse_bytes])
@pytest.mark.parametrize("text", ["100", "fast", "100Gx", "-1GB/s", ""])
def test_a_number_without_its_unit_is_refused_and_the_units_named(parse, text):
    with pytest.raises(ConfigError, match=r"unit, such as .*(Gbps|GiB)"):
        parse(text)


def test_sizes_and_counts_are_read_and_written():
    assert parse_bytes("3.84TB") == 3_840_000_000_000
    assert parse_count("1.5T") == 1.5e12
    assert (rate_text(12.5e9), count_text(175e9), seconds_text(0.9999)) == ("12.5 GB/s", "175B", "1 s")


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**30, "1.0 GiB"), (2**41, "2.0 TiB")]
)
def test_memory_is_told_by_powers_of_two(count, text):
    assert memory_text(count) == text


def test_every_constant_and_preset_has_a_source():
    found = {name: value for module in (constants, gpus) for name, value in vars(module).items()}
    table = {name: value for name, value in found.items() if isinstance(value, Constant)}
    assert len(table) >= 20
    for name, value in table.items():
        assert len(value.source) > 10, name
        assert value.unit, name
    for preset in (*gpus.GPUS.values(), *CLUSTERS.values(), *DISKS.values(), *SWITCHES.values()):
        assert preset.source, preset


def test_the_page_on_planning_names_the_constants_that_nobody_could_check():
    page = (Path(__file__).resolve().parents[2] / "docs" / "planning.md").read_text()
    for name, value in [*vars(constants).items(), *vars(gpus).items()]:
        if isinstance(value, Constant):
            assert (f"`{name}`" in page) == (not value.checked), name


def test_no_other_file_of_the_planner_has_a_constant_to_tune():
    folder = Path(luwu.plan.__file__).parent
    for path in sorted([*folder.glob("*.py"), *folder.glob("measured/*.py")]):
        if path.name in TABLES:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, float) and path.name != "names.py":
                assert node.value == int(node.value), f"{path.name}:{node.lineno}: {node.value}"


def test_every_gpu_has_a_price_and_a_cluster_costs_what_its_parts_cost():
    assert set(gpus.GPUS) <= set(PRICES)
    cost = cost_of(CLUSTERS["paper"], prices={"a100-40gb-pcie3": 1.0})
    assert cost.parts["GPUs"] == 8
    assert cost.price == sum(cost.parts.values())
    assert cost.dollars_for(365) > cost.price / 4


def test_networks_have_as_many_switches_as_their_papers_say():
    switch = SwitchModel(4, 1e9, 1.0, 1.0, "a test")
    assert build_network("fat_tree", 16, switch).switches == 20  # k = 4: 5 k^2 / 4 switches for k^3 / 4 hosts
    assert build_network("rack", 4, switch).switches == 1
    tree = build_network("tree", 9, switch)
    assert (tree.switches, tree.tiers, tree.cables) == (4, 2, 12)  # three leaves of three below one root
    assert build_network("rail_only", 16, switch, rails=4).switches == 4
    with pytest.raises(ConfigError, match="at most 4 links"):
        build_network("rack", 5, switch)
    with pytest.raises(ConfigError, match="at most 16 links"):
        build_network("fat_tree", 17, switch)


def test_collectives_move_what_the_literature_says():
    assert link_bytes("all_gather", "ring", 8.0, 4) == 6.0
    assert link_bytes("all_reduce", "ring", 8.0, 4) == 12.0
    assert link_bytes("all_reduce", "switch", 8.0, 4) == 8.0
    assert link_bytes("reduce_scatter", "switch", 8.0, 4) == 6.0  # a switch helps no reduce-scatter
    assert collective_seconds("all_gather", "tree", 1e3, 256, 1e9) < collective_seconds(
        "all_gather", "ring", 1e3, 256, 1e9
    )
    assert collective_seconds("all_gather", "ring", 1e9, 1, 1e9) == 0.0


def test_interference_never_helps_and_never_hides_what_is_longest():
    collectives = Transfer(2.0, 3.0)
    for compute in (0.0, 0.5, 2.0, 10.0):
        assert beside_compute(compute, collectives) >= beside_compute(compute, collectives, interferes=False)
    assert beside_compute(0.0, collectives, interferes=False) == 2.0


TIMES = PartSeconds(forward=1.0, backward_inputs=1.0, backward_weights=1.0)


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_simple_pipelines_idle_as_their_papers_say(name):
    run = play(name, 4, 8, TIMES)
    assert run.bubble == pytest.approx(3 / 8)
    assert run.in_flight == (8 if name == "gpipe" else 4)


def test_interleaving_waves_and_split_backwards_idle_less():
    bubble = {name: play(name, 4, 16, TIMES).bubble for name in SCHEDULES}
    plain = bubble["1f1b"]
    assert bubble["interleaved"] == pytest.approx(plain / 2)
    assert play("interleaved", 4, 16, TIMES, parts=3).bubble == pytest.approx(plain / 3)
    assert bubble["zero_bubble"] < 0.5 * plain
    assert bubble["zeropp"] <= bubble["interleaved"]
    assert bubble["hanayo"] < plain
    assert bubble["bitpipe"] < plain


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_stage_does_one_thing_at_a_time_and_everything_once(name):
    run = play(name, 3, 6, TIMES)
    kinds = 3 if SCHEDULES[name].split else 2
    assert len(run.tasks) == len({(task.kind, task.stage, task.micro_batch, task.part) for task in run.tasks})
    assert len(run.tasks) == kinds * 3 * 6 * SCHEDULES[name].default_parts
    for stage in range(3):
        mine = sorted((task.start, task.end) for task in run.tasks if task.stage == stage)
        assert all(before[1] <= after[0] + 1e-9 for before, after in itertools.pairwise(mine))
    begun = {(task.kind, task.micro_batch, task.part, task.stage): task for task in run.tasks}
    for task in run.tasks:
        if task.kind == "B":
            assert begun["F", task.micro_batch, task.part, task.stage].end <= task.start + 1e-9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("1f1c", 2, 2), "near it: 1f1b"), (("1f1b", 0, 2), "found 0 and 2"), (("bitpipe", 2, 3), "even number")],
)
def test_impossible_pipelines_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        play(*arguments, TIMES)
