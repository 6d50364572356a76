"""The part of the RayCluster's schema that docs/cluster-nodes.md uses, written by hand as JSON Schema.

Names and types follow KubeRay's ``ray-operator/apis/ray/v1/raycluster_types.go`` and its operator's checks
(``ray-operator/controllers/ray/utils/validation.go``: a container per group, replicas, a DNS name of at most 63
characters), and Kubernetes' pod, of which only the fields in use are known here: a field that the page newly uses must
be added with its type. ``additionalProperties`` is false everywhere, as an API server with strict validation refuses an
unknown field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator

TEXT: dict[str, Any] = {"type": "string"}
#: of the CRD's int32
COUNT: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
#: Kubernetes' resource.Quantity, for amounts that are not negative
QUANTITY: dict[str, Any] = {
    "anyOf": [
        {"type": "integer", "minimum": 0},
        {"type": "string", "pattern": r"^\d+(\.\d+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"},
    ]
}
#: a DNS label (RFC 1035), of which the operator takes at most 63 characters for a cluster's name
NAME: dict[str, Any] = {"type": "string", "pattern": r"^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}


def fields(known: Mapping[str, Any], *required: str) -> dict[str, Any]:
    """An object of these fields only."""
    return {
        "type": "object",
        "properties": dict(known),
        "required": list(required),
        "additionalProperties": False,
    }


def many(item: Mapping[str, Any], *, least: int = 0) -> dict[str, Any]:
    """A list of items."""
    return {"type": "array", "items": dict(item), "minItems": least}


AMOUNTS: dict[str, Any] = {"type": "object", "additionalProperties": QUANTITY}
PROFILE = fields({"type": {"enum": ["Localhost", "RuntimeDefault", "Unconfined"]}, "localhostProfile": TEXT}, "type")
SECURITY = fields(
    {"procMount": {"enum": ["Default", "Unmasked"]}, "seccompProfile": PROFILE, "appArmorProfile": PROFILE}
)
CONTAINER = fields(
    {
        "name": NAME,
        "image": TEXT,
        "resources": fields({"limits": AMOUNTS, "requests": AMOUNTS}),
        "securityContext": SECURITY,
        "volumeMounts": many(fields({"name": NAME, "mountPath": TEXT}, "name", "mountPath")),
    },
    "name",
    "image",
)
VOLUME = {
    **fields(
        {
            "name": NAME,
            "emptyDir": fields({"medium": {"enum": ["", "Memory"]}, "sizeLimit": QUANTITY}),
            "persistentVolumeClaim": fields({"claimName": TEXT, "readOnly": {"type": "boolean"}}, "claimName"),
        },
        "name",
    ),
    "minProperties": 2,  # its name and one kind
    "maxProperties": 2,
}
POD = fields(
    {"hostUsers": {"type": "boolean"}, "containers": many(CONTAINER, least=1), "volumes": many(VOLUME)}, "containers"
)
GROUP = {
    "rayStartParams": {"type": "object", "additionalProperties": TEXT},  # arguments of ray start: texts only
    "template": fields({"spec": POD}, "spec"),
}
WORKERS = fields(
    {"groupName": NAME, "replicas": COUNT, "minReplicas": COUNT, "maxReplicas": COUNT, **GROUP},
    "groupName",
    "minReplicas",
    "maxReplicas",
    "template",
)
RAY_CLUSTER = fields(
    {
        "apiVersion": {"const": "ray.io/v1"},
        "kind": {"const": "RayCluster"},
        "metadata": fields({"name": NAME}, "name"),
        "spec": fields(
            {"rayVersion": TEXT, "headGroupSpec": fields(GROUP, "template"), "workerGroupSpecs": many(WORKERS)},
            "headGroupSpec",
        ),
    },
    "apiVersion",
    "kind",
    "metadata",
    "spec",
)


def problems(cluster: Any) -> list[str]:
    """What is wrong with a RayCluster, one line each: the schema's, and what no schema can say."""
    found = [
        f"{'.'.join(map(str, error.absolute_path))}: {error.message}"
        for error in Draft202012Validator(RAY_CLUSTER).iter_errors(cluster)
    ]
    if found:
        return found
    spec = cluster["spec"]
    for group in spec.get("workerGroupSpecs", ()):
        least, most = group["minReplicas"], group["maxReplicas"]
        if not least <= group.get("replicas", least) <= most:
            found.append(f"{group['groupName']}: replicas are not between minReplicas and maxReplicas")
    for group in (spec["headGroupSpec"], *spec.get("workerGroupSpecs", ())):
        pod = group["template"]["spec"]
        volumes = {volume["name"] for volume in pod.get("volumes", ())}
        for container in pod["containers"]:
            missing = {mount["name"] for mount in container.get("volumeMounts", ())} - volumes
            found += [f"{container['name']}: no volume {name}" for name in sorted(missing)]
            if (
                container.get("securityContext", {}).get("procMount") == "Unmasked"
                and pod.get("hostUsers") is not False
            ):
                found.append(f"{container['name']}: procMount Unmasked requires hostUsers: false")
    return found
