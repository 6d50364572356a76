"""What a run's preparation says about its traces, read without torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bepa_torchrl.analysis.records import MethodRecord
from bepa_torchrl.experts.plans import prepared_plans
from bepa_torchrl.storage.json_lines import RecordError
from bepa_torchrl.storage.record_fields import OBJECT, check_modes, check_provenance


def prepared_folder(record: MethodRecord) -> Path:
    """The folder of the preparation, beside the method's."""
    return record.folder.parent / "prepared"


def read_manifest(record: MethodRecord) -> dict[str, Any]:
    """The run's manifest as JSON values; empty if the run has no preparation yet.

    Raises:
        RecordError: it is damaged.
    """
    return read_object(prepared_folder(record) / "manifest.json")


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object from a file of a run; empty if there is no such file.

    Raises:
        RecordError: it is damaged.
    """
    if not path.exists():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: expected JSON ({error}); restore the file") from error
    if not isinstance(data, dict):
        raise RecordError(f"{path}: expected a JSON object, got {type(data).__name__}; restore the file")
    return data


def prepared_provenance(record: MethodRecord) -> list[dict[str, Any]]:
    """The provenance of the prepared traces, with ``task_id``; empty without one.

    Raises:
        RecordError: it is damaged.
    """
    where = f"{prepared_folder(record) / 'manifest.json'}: provenance"
    kinds = read_manifest(record).get("provenance", {})
    check_modes(where, kinds, OBJECT)
    for kind, tasks in kinds.items():
        for task, fields in tasks.items():
            check_provenance(f"{where}: {kind}: {task}", fields)
    return [{"task_id": task, **fields} for tasks in kinds.values() for task, fields in tasks.items()]


def plans_by_hash(record: MethodRecord) -> dict[str, str]:
    """The plans of the run's preparation by their hash; empty before it."""
    import yaml

    try:
        settings = yaml.safe_load((record.folder / "config.yaml").read_text(encoding="utf-8"))
        source = str(settings["expert"]["plan_source"])
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError):
        source = "raw"
    return prepared_plans(prepared_folder(record), source)


@dataclass(frozen=True, slots=True)
class ExpertFile:
    """A prepared expert's trace.

    Args:
        expert: name of the expert.
        task_id: the task.
        file: the file of the trace, below the run's folder.
        run: in the expert's log; empty if it was recorded for this run.
    """

    expert: str
    task_id: str
    file: str
    run: str


def expert_files(record: MethodRecord) -> list[ExpertFile]:
    """The expert's traces of the run's preparation; empty before it.

    Raises:
        RecordError: one is damaged.
    """
    folder = prepared_folder(record)
    files = [(path, read_object(path)) for path in sorted((folder / "experts" / "traces").glob("*/*.json"))]
    return [
        ExpertFile(
            str(data["expert"]), str(data["task_id"]), str(path.relative_to(folder.parent)), str(data.get("run", ""))
        )
        for path, data in files
        if "expert" in data and "task_id" in data
    ]
