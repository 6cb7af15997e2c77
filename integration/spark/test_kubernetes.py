"""The manifests of examples/spark/kubernetes by the schemas of Kubernetes, and what `spark-submit` makes of submit.sh.

Needs the package kubernetes-validate, which has the schemas and reads YAML: the session `spark-full` installs it.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from integration.kit.spark.kubernetes_api import KubernetesApi
from integration.kit.spark.sessions import environment

pytestmark = pytest.mark.full

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "spark" / "kubernetes"

# The fields that the manifest uses, with their types, and the required fields, as the custom resource of the Spark
# operator 2.5 defines them in version v1beta2.
SECRETS = [{"name": str, "path": str, "secretType": str}]
MOUNTS = [{"name": str, "mountPath": str}]
POD = {
    "cores": int,
    "memory": str,
    "podSecurityContext": {"fsGroup": int},
    "secrets": SECRETS,
    "volumeMounts": MOUNTS,
}
SPARK_APPLICATION = {
    "type": str,
    "pythonVersion": str,
    "mode": str,
    "sparkVersion": str,
    "image": str,
    "imagePullPolicy": str,
    "mainApplicationFile": str,
    "arguments": [str],
    "memoryOverheadFactor": str,
    "restartPolicy": {
        "type": str,
        "onFailureRetryInterval": int,
        "onSubmissionFailureRetryInterval": int,
    },
    "volumes": [{"name": str, "persistentVolumeClaim": {"claimName": str}}],
    "driver": {**POD, "serviceAccount": str},
    "executor": {**POD, "instances": int},
}
REQUIRED = {"type", "sparkVersion", "mainApplicationFile", "driver", "executor"}
CHOICES = {
    "type": {"Java", "Python", "Scala", "R"},
    "mode": {"cluster", "client"},
    "pythonVersion": {"2", "3"},
}


def documents(name: str) -> list[dict[str, Any]]:
    import yaml

    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


def validate(one: dict[str, Any]) -> None:
    import kubernetes_validate

    kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)


def check_fields(manifest: Any, known: Any, path: str) -> None:
    """Raise for a field that is unknown or has another type."""
    if isinstance(known, list):
        assert isinstance(manifest, list), path
        for at, one in enumerate(manifest):
            check_fields(one, known[0], f"{path}[{at}]")
    elif isinstance(known, dict):
        assert set(manifest) <= set(known), f"{path}: {set(manifest) - set(known)}"
        for name, one in manifest.items():
            check_fields(one, known[name], f"{path}.{name}")
    else:
        assert type(manifest) is known, path


@pytest.mark.parametrize("name", ["cluster.yaml", "pod.yaml"])
def test_objects_fit_schemas(name: str) -> None:
    import kubernetes_validate

    objects = documents(name)
    for one in objects:
        validate(one)
    broken = {**objects[0], "spex": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(broken)


def test_application_of_operator() -> None:
    (application,) = documents("spark-application.yaml")
    assert (application["apiVersion"], application["kind"]) == (
        "sparkoperator.k8s.io/v1beta2",
        "SparkApplication",
    )
    spec = application["spec"]
    check_fields(spec, SPARK_APPLICATION, "spec")
    assert set(spec) >= REQUIRED
    for name, allowed in CHOICES.items():
        assert spec[name] in allowed
    with pytest.raises(AssertionError, match="serviceAcount"):
        check_fields({"driver": {"serviceAcount": "orders"}}, SPARK_APPLICATION, "spec")


def submitted(**env: str) -> list[dict[str, Any]]:
    """What `spark-submit` creates for submit.sh."""
    import pyspark

    api = KubernetesApi()
    try:
        options = {"SPARK_HOME": str(Path(pyspark.__file__).parent), "MASTER": api.url, **env}
        command = ["sh", str(FOLDER / "submit.sh")]
        for kind in (
            "connection",
            "request",
        ):  # milliseconds, because 10 s each are too few on a busy machine
            command += ["--conf", f"spark.kubernetes.submission.{kind}Timeout=120000"]
        done = subprocess.run(
            command,
            env={**os.environ, **environment(), **options},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return api.created
    finally:
        api.close()


def test_what_spark_submit_creates() -> None:
    """The driver has the same secrets, volume, account and arguments as the operator's driver."""
    objects = submitted(IMAGE="registry.example.com/orders:2")
    for one in objects:
        validate(one)
    (pod,) = [one for one in objects if one["kind"] == "Pod"]
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    (application,) = documents("spark-application.yaml")
    operators = application["spec"]
    namespaces = {one["metadata"]["namespace"] for one in objects if "namespace" in one["metadata"]}
    assert namespaces == {application["metadata"]["namespace"]}
    assert container["image"] == "registry.example.com/orders:2"
    assert spec["serviceAccountName"] == operators["driver"]["serviceAccount"]
    assert spec["securityContext"]["fsGroup"] == operators["driver"]["podSecurityContext"]["fsGroup"]
    file = operators["mainApplicationFile"]
    assert container["args"][container["args"].index(file) :] == [file, *operators["arguments"]]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes[mounts["/etc/orders"]]["secret"]["secretName"] == "orders-nats"
    claim = volumes[mounts["/data/checkpoints"]]["persistentVolumeClaim"]["claimName"]
    assert claim in {one["metadata"]["name"] for one in documents("cluster.yaml")}
    settings = next(
        one["data"]["spark.properties"] for one in objects if "spark.properties" in one.get("data", {})
    )
    assert "spark.kubernetes.executor.secrets.orders-nats=/etc/orders" in settings
