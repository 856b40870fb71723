from __future__ import annotations

import errno

import torch

from luwu.probe import machine
from luwu.probe.machine import direct_io_error, examine, nearest_existing


def pretend_gpus(monkeypatch, number):
    """Let torch find GPUs of 8 GiB; of each one more GiB is free than of the one before."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: number)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (index << 30, 8 << 30))


def test_every_finding_that_is_not_good_says_what_it_costs(tmp_path):
    findings = examine(tmp_path / "not" / "there" / "yet")
    names = [finding.name for finding in findings]
    assert {"processor", "memory", "instruction set", "liburing", "disk access", "O_DIRECT", "huge pages"} <= set(names)
    assert {"RLIMIT_MEMLOCK", "torch", "CUDA devices", "bfloat16 on the processor"} <= set(names)
    assert all(finding.found for finding in findings)
    assert all(finding.cost for finding in findings if not finding.good)
    assert not list(tmp_path.iterdir())


def test_the_closest_folder_that_exists(tmp_path):
    assert nearest_existing(tmp_path / "a" / "b") == tmp_path


def test_a_folder_that_takes_no_files_is_reported():
    assert direct_io_error(machine.PROC) in (errno.ENOENT, errno.EACCES, errno.EROFS, errno.EPERM)


def test_gpus_are_shown_with_their_memory_and_what_a_worker_locks(monkeypatch, tmp_path):
    pretend_gpus(monkeypatch, 2)
    found = {finding.name: finding for finding in examine(tmp_path)}
    assert found["CUDA devices"].found == "GPU 0, 0 B of 8.0 GiB free; GPU 1, 1.0 GiB of 8.0 GiB free"
    assert found["page-locked memory"].found.startswith("a part of --memory")


def test_huge_pages_of_shared_memory_are_shown(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "SYS", tmp_path)
    setting = tmp_path / "kernel/mm/transparent_hugepage/shmem_enabled"
    setting.parent.mkdir(parents=True)
    for text, good in (("always within_size advise [never] deny force", False), ("always [advise] never", True)):
        setting.write_text(text)
        found = {finding.name: finding for finding in examine(tmp_path)}["huge pages of shared memory"]
        assert found.good is good
        assert found.found in text
