"""Small runs of `luwu train`, which the tests of a file share."""

from __future__ import annotations

import pytest
from tests.integration.small_run import validation

from harness.training import finish, prepare_small_run, start_small_run, steps_of


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with a text and the settings of a small run, for several of them."""
    return prepare_small_run(tmp_path_factory.mktemp("train"))


@pytest.fixture(scope="module")
def undisturbed(runs):
    """Rows and validation line of a run that nobody touched; what it said is in undisturbed-said."""
    code, output, error = finish(start_small_run(runs, "undisturbed"))
    assert code == 0, error
    (runs / "undisturbed-said").write_text(output)
    return steps_of(runs, "undisturbed"), validation(output)
