"""The containers of deploy/kubernetes as a kubelet starts them: their commands, environment, files and probes fit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from harness.network.namespaces import wait_until
from harness.warm import start_program

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "deploy" / "kubernetes"
PORT = re.compile(r"\b7070\b")


def container_of(file: str, kind: str) -> dict[str, Any]:
    """Return the only container of an object's pods."""
    (found,) = (each for each in yaml.safe_load_all((MANIFESTS / file).read_text()) if each["kind"] == kind)
    (container,) = found["spec"]["template"]["spec"]["containers"]
    return container


def command_of(words: list[str]) -> list[str]:
    assert words[0] == "luwu"
    return [sys.executable, "-m", "luwu.cli", *words[1:]]


@pytest.mark.slow
def test_the_containers_train(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "job.key").write_text("0123456789abcdef" * 4)
    (tmp_path / "gate").touch()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    server, worker = container_of("server.yaml", "StatefulSet"), container_of("workers.yaml", "Job")

    def here(text: str) -> str:
        """Put a folder of this test, and little memory, in the place of a pod's."""
        text = text.replace("/etc/luwu", f"{tmp_path}/etc").replace("=/store", f"={tmp_path}/store")
        return text.replace("32GiB", "64MiB").replace("0.0.0.0:7070", "127.0.0.1:0")

    words = [*command_of(server["command"]), *map(here, server["args"]), f"--url-file={tmp_path}/url"]
    serving = start_program(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: (tmp_path / "url").exists() or serving.poll() is not None, "the server")
        assert serving.poll() is None, serving.communicate()[1]
        url = (tmp_path / "url").read_text().strip()
        for probe in ("startupProbe", "readinessProbe"):
            *command, asked = server[probe]["exec"]["command"]
            assert PORT.sub("", asked) == PORT.sub("", "luwu://127.0.0.1:7070")
            assert start_program([*command_of(command), url], env=environment).wait(60) == 0
        given = {each["name"]: here(each["value"]) for each in worker["env"] if "value" in each} | {"LUWU_SERVER": url}
        assert given["WORLD_SIZE"] == "4" and "--workers=4" in server["args"]
        program = [sys.executable, "-m", "harness.cluster_training", str(tmp_path)]
        workers = [
            start_program(program, env=environment | given | {"RANK": str(index)}) for index in range(4)
        ]  # fmt: skip
        assert [each.wait(100) for each in workers] == [0] * 4
    finally:
        serving.terminate()
        serving.communicate(timeout=60)
    assert torch.load(tmp_path / "values.pt")


def test_the_objects_fit_one_another() -> None:
    """The service finds the server's pods under the name that workers use, and all containers have the key's file."""
    service, stateful = yaml.safe_load_all((MANIFESTS / "server.yaml").read_text())
    job = yaml.safe_load((MANIFESTS / "workers.yaml").read_text())
    assert service["spec"]["selector"].items() <= stateful["spec"]["template"]["metadata"]["labels"].items()
    addresses = [each.get("value") for each in container_of("workers.yaml", "Job")["env"]]
    assert f"luwu://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}" in addresses
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 4
    (generated,) = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())["secretGenerator"]
    for kind in (stateful, job):
        (volume,) = kind["spec"]["template"]["spec"]["volumes"]
        assert volume["secret"]["secretName"] == generated["name"] and generated["files"] == ["job.key"]
