"""Tokens from which on computation hides copies, updates and the disk: tables and units."""

from dataclasses import replace

import pytest

from luwu.plan.hiding import Compute, Needs, Thresholds, offload_ratio, thresholds

NOTHING = Needs(down=0.0, up=0.0, update=0.0, disk_forward=0.0, disk_backward=0.0)


def copies(flops, rate, **changes):
    """Needs of bfloat16 over one link; F and B are as in the formulas."""
    return thresholds(Compute(flops, **changes), replace(NOTHING, down=2 / rate, up=2 / rate))


@pytest.mark.parametrize(
    ("flops", "rate"), [(1e12, 1e9), (139e12, 25e9), (834e12, 50e9), (834e12, 12.5e9)], ids=lambda value: f"{value:.3g}"
)
def test_copies_have_the_published_formulas(flops, rate):
    found = copies(flops, rate)
    assert found.pull == pytest.approx(flops / rate)  # T >= F/B
    assert found.backward == pytest.approx(flops / (3 * rate))  # T >= F/3B
    assert found.average == pytest.approx(flops / (2 * rate))  # T >= F/2B
    assert found.copies == found.pull


def test_an_update_is_hidden_by_the_backward_alone():
    found = thresholds(Compute(139e12), replace(NOTHING, update=1 / 3e9))  # R = 3 G updates a second
    assert found.server == pytest.approx(139e12 / (6 * 3e9))  # T >= F/6R
    without = thresholds(Compute(139e12, recompute=False), replace(NOTHING, update=1 / 3e9))
    assert without.server == pytest.approx(139e12 / (4 * 3e9))


def test_the_disk_has_the_bytes_of_the_published_table():
    # arXiv 2409.00918: 2 bytes a parameter in forward; 2 + 12 read and 14 written in backward.
    rate = 7e9
    found = thresholds(Compute(139e12), replace(NOTHING, disk_forward=2 / rate, disk_backward=28 / rate))
    assert found.disk == pytest.approx(139e12 * 28 / (6 * rate))
    one_sided = thresholds(Compute(139e12), replace(NOTHING, disk_forward=14 / rate, disk_backward=28 / rate))
    assert one_sided.disk == pytest.approx(139e12 * 14 / (2 * rate))  # the slower phase decides


@pytest.mark.parametrize(("scale", "at"), [(2.0, 2.0), (0.5, 0.5)])
def test_units_are_tokens(scale, at):
    base = thresholds(Compute(1e14), Needs(1e-10, 1e-10, 1e-9, 1e-10, 4e-9))
    faster = thresholds(Compute(scale * 1e14), Needs(1e-10, 1e-10, 1e-9, 1e-10, 4e-9))
    slower = thresholds(Compute(1e14), Needs(*(scale * value for value in (1e-10, 1e-10, 1e-9, 1e-10, 4e-9))))
    for name in ("pull", "backward", "average", "server", "disk", "everything"):
        assert getattr(faster, name) == pytest.approx(at * getattr(base, name)), name
        assert getattr(slower, name) == pytest.approx(at * getattr(base, name)), name
    # A second of copies for each parameter, and a flop a second: 2 flop a token and parameter, so half a token.
    assert thresholds(Compute(1.0), replace(NOTHING, down=1.0)).pull == 0.5


def test_experts_that_a_token_passes_by_hide_nothing():
    assert copies(1e14, 1e10, active=0.25).pull == pytest.approx(4 * copies(1e14, 1e10).pull)


def test_the_bottleneck_is_what_needs_the_most_tokens():
    found = Thresholds(pull=5.0, backward=2.0, average=3.0, server=4.0, disk=9.0)
    assert (found.bottleneck, found.everything) == ("disk", 9.0)
    assert found.exposed(4.5) == ["copies", "disk"]
    assert found.exposed(9.0) == []


def test_offloaded_activations_are_hidden_by_wide_layers_whatever_the_tokens():
    compute, rate = Compute(139e12), 25e9
    assert offload_ratio(compute, rate) == pytest.approx(139e12 / 25e9)  # P/h >= F/B
    assert offload_ratio(compute, rate, element_bytes=4) == pytest.approx(2 * 139e12 / 25e9)
    # From both conditions follows that a backward hides pulls and inputs, which go the same way.
    hidden, tokens = 4096, compute.flops / rate
    parameters = hidden * offload_ratio(compute, rate)
    assert 2 * (parameters + tokens * hidden) / rate <= 6 * parameters * tokens / compute.flops
