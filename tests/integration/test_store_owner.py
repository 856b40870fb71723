"""`luwu train` on a store that another run has trained, on this machine and on a server."""

from __future__ import annotations

import shutil
import signal

import pytest
from tests.integration.network import KEY, ServerProcess

from harness.training import finish, metrics, prepare_small_run, start_run, steps_of, wait_for_steps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two texts, the settings of a small run, and the store of one that has learned the first text."""
    folder = prepare_small_run(tmp_path_factory.mktemp("owner"), workers=1)
    (folder / "other").write_text("".join(f"{number} comes before {number + 1}.\n" for number in range(3000)))
    code, _, error = finish(start_run(folder, "first", "--data", "text", "--store", "store", "--steps", "6"))
    assert code == 0, error
    return folder


def test_another_run_is_refused_before_anything_is_written(folder):
    code, output, error = finish(start_run(folder, "second", "--data", "other", "--store", "store", "--steps", "6"))
    assert (code, output) == (2, "")
    assert f"{folder}/store belongs to the run {folder}/first (data text)" in error
    assert f"this is the run {folder}/second; they differ in data.path ({folder}/text there, {folder}/other" in error
    assert "\n  --new-run " in error and f"\n  --run {folder}/first " in error and "\n  --store FOLDER " in error
    assert not (folder / "second").exists()


def test_a_new_run_goes_on_from_the_weights_with_a_schedule_of_its_own(folder):
    for name in ("quiet", "stopped"):
        shutil.copytree(folder / "store", folder / f"store-{name}")
    flags = ("--data", "other", "--steps", "12", "--new-run")
    code, output, error = finish(start_run(folder, "quiet", *flags, "--store", "store-quiet"))
    assert code == 0, error
    assert f"which the run {folder}/first (data text) trained to step 6" in output
    rows = metrics(folder, "quiet")
    assert [(row["step"], row["attempt"]) for row in rows] == [(number + 1, number) for number in range(12)]
    assert rows[0]["lr"] == metrics(folder, "first")[0]["lr"]  # the warmup begins again
    process = start_run(folder, "stopped", *flags, "--store", "store-stopped")
    wait_for_steps(folder, "stopped", 3)
    process.send_signal(signal.SIGINT)
    code, output, error = finish(process)
    assert code == 130, error
    (folder / "stopped").rename(folder / "moved")  # its id is what counts
    code, output, error = finish(start_run(folder, "moved", *flags, "--store", "store-stopped"))
    assert code == 0, error
    assert "resuming after step" in output
    assert steps_of(folder, "moved") == steps_of(folder, "quiet")


def test_a_run_that_has_more_steps_is_refused(folder):
    code, output, error = finish(start_run(folder, "first", "--store", "store", "--steps", "3"))
    assert (code, output) == (2, "")
    assert "run.steps: expected at least 6, the steps that this run has made, found 3" in error
    code, output, error = finish(start_run(folder, "first", "--store", "store", "--steps", "6"))
    assert code == 0 and "this run is complete: 6 of 6 steps" in output, error


def test_a_server_knows_the_run_of_its_store(folder, monkeypatch):
    monkeypatch.setenv("LUWU_JOB_KEY", KEY)
    with ServerProcess(folder / "served", 2) as server:
        flags = ("--server", server.url, "--workers", "2", "--steps", "4")
        code, _, error = finish(start_run(folder, "here", "--data", "text", *flags))
        assert code == 0, error
        code, _, error = finish(start_run(folder, "there", "--data", "other", *flags))
        assert code == 2 and f"belongs to the run {folder}/here (data text)" in error, error
        assert "--new-run" in error and f"--run {folder}/here" in error and "luwu server --store FOLDER" in error
        code, output, error = finish(start_run(folder, "there", "--data", "other", *flags, "--new-run"))
        assert code == 0 and f"which the run {folder}/here (data text) trained to step 4" in output, error
        assert [row["step"] for row in metrics(folder, "there")] == [1, 2, 3, 4]
        code, _, error = finish(start_run(folder, "here", *flags))
        assert code == 2 and f"belongs to the run {folder}/there (data other)" in error, error
