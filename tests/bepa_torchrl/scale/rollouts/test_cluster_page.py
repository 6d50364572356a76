"""The examples of docs/cluster-nodes.md parse, and name what the program reads."""

from __future__ import annotations

import copy
import json
import re
import shlex
from typing import Any

import pytest
import yaml
from kuberay import problems
from repository import ROOT

from osworld_gym import __version__

PAGE = (ROOT / "docs" / "cluster-nodes.md").read_text(encoding="utf-8")
RAY_UP, KUBERAY = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.S))


def desktops(resources: str) -> int:
    """The resource that workers follow, of Ray's argument as a shell passes it."""
    (text,) = shlex.split(resources)
    return int(json.loads(text)["desktops"])


def test_the_nodes_of_both_examples_have_desktops() -> None:
    (start,) = [command for command in RAY_UP["worker_start_ray_commands"] if "ray start" in command]
    assert desktops(re.findall(r"--resources=(\S+)", start)[0]) == 32
    (group,) = KUBERAY["spec"]["workerGroupSpecs"]
    assert desktops(group["rayStartParams"]["resources"]) == 32


def test_pods_may_make_namespaces_and_have_shared_memory() -> None:
    pod = KUBERAY["spec"]["workerGroupSpecs"][0]["template"]["spec"]
    assert pod["hostUsers"] is False
    (container,) = pod["containers"]
    assert container["securityContext"]["procMount"] == "Unmasked"
    assert "privileged" not in json.dumps(KUBERAY)
    for spec in (pod, KUBERAY["spec"]["headGroupSpec"]["template"]["spec"]):
        mounts: list[dict[str, Any]] = spec["containers"][0]["volumeMounts"]
        assert {mount["name"] for mount in mounts} == {volume["name"] for volume in spec["volumes"]}
        assert "/dev/shm" in {mount["mountPath"] for mount in mounts}


def test_versions_are_those_of_this_package() -> None:
    assert any(f"=={__version__}" in command for command in RAY_UP["setup_commands"])
    extras = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f"ray[default]>={KUBERAY['spec']['rayVersion'].removesuffix('.0')}" in extras


def test_the_cluster_of_pods_fits_its_schema() -> None:
    assert problems(KUBERAY) == []


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("spec", "workerGroupSpecs", 0, "rayStartParams", "num-cpus"), 4, "4 is not of type 'string'"),
        (("spec", "headGroupSpec", "serviceAccount"), "bepa", "'serviceAccount' was unexpected"),
        (("spec", "workerGroupSpecs", 0, "replicas"), "4", "'4' is not of type 'integer'"),
        (("spec", "workerGroupSpecs", 0, "replicas"), 5, "not between minReplicas and maxReplicas"),
        (("spec", "headGroupSpec", "template", "spec", "containers"), [], "should be non-empty"),
        (("spec", "headGroupSpec", "template", "spec", "volumes"), [], "no volume shm"),
        (("spec", "workerGroupSpecs", 0, "template", "spec", "hostUsers"), True, "requires hostUsers: false"),
        (("metadata", "name"), "Bepa_1", "does not match"),
        (("apiVersion",), "ray.io/v1alpha1", "'ray.io/v1' was expected"),
    ],
    ids=str,
)
def test_the_schema_finds_a_mistake(path: tuple[Any, ...], value: Any, problem: str) -> None:
    cluster = copy.deepcopy(KUBERAY)
    place = cluster
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    assert any(problem in line for line in problems(cluster)), problems(cluster)


@pytest.mark.ray
def test_ray_accepts_the_cluster_of_machines() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(RAY_UP))
