"""The manifests of deploy/kubernetes against the schemas of Kubernetes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="make test-clusters installs it")

MANIFESTS = Path(__file__).parents[2] / "deploy" / "kubernetes"
OLDEST = "1.28"


def documents() -> list[dict]:
    files = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())["resources"]
    return [document for file in files for document in yaml.safe_load_all((MANIFESTS / file).read_text())]


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
@pytest.mark.parametrize("document", documents(), ids=lambda document: document["kind"])
def test_every_object_has_its_schema(document: dict, version: str) -> None:
    kubernetes_validate.validate(document, version, strict=True)


def test_a_wrong_object_is_refused() -> None:
    workers = next(document for document in documents() if document["kind"] == "Job")
    workers["spec"]["parallel"] = 4
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(workers, OLDEST, strict=True)
