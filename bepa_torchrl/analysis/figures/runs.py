"""A method of a run as the figures read it: record, settings, results; and how it is named among several runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from bepa_torchrl.analysis.prepared import prepared_folder, read_manifest, read_object
from bepa_torchrl.analysis.records import MethodRecord, find_records
from bepa_torchrl.monitoring.final_results import are_final
from bepa_torchrl.storage.json_lines import RecordError
from bepa_torchrl.storage.record_fields import TALLY, TEXT, check_fields, check_modes, check_results


@dataclass(frozen=True)
class MethodOfRun:
    """One method of one run.

    Args:
        label: its name in figures and tables: the method's, with the run's if there are several; no other has it.
        record: its record.
    """

    label: str
    record: MethodRecord

    @property
    def run(self) -> str:
        """The run's name in the names of files."""
        return self.label.rpartition("/")[0] or self.record.folder.absolute().parent.name

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """The metrics of each iteration."""
        return self.record.iterations()

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """The method's settings as nested mappings.

        Raises:
            RecordError: they are not there, or damaged.
        """
        path = self.record.folder / "config.yaml"
        try:
            settings = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
            raise RecordError(f"{path}: expected the settings of a method ({error}); restore the file") from error
        if not isinstance(settings, dict):
            raise RecordError(
                f"{path}: expected the settings of a method, got {type(settings).__name__}; restore the file"
            )
        return settings

    @cached_property
    def results(self) -> Mapping[str, Any]:
        """The final results; empty while the method is trained, also after a resume with more iterations.

        Raises:
            RecordError: they are damaged.
        """
        folder = self.record.folder
        results = read_object(folder / "results.json")
        check_results(folder / "results.json", results)
        return results if are_final(results, folder / "config.yaml") else {}

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        """The task sets of the run; empty before its preparation.

        Raises:
            RecordError: they are damaged.
        """
        manifest = read_manifest(self.record)
        if manifest:
            names = dict.fromkeys(("train", "held_out", "expert"), TEXT.list_of())
            check_fields(str(prepared_folder(self.record) / "manifest.json"), manifest, names)
        return manifest

    @cached_property
    def base(self) -> Mapping[str, Mapping[str, Any]]:
        """The base policy's evaluations: mode → task → [successes, episodes]; empty before the preparation."""
        path = prepared_folder(self.record) / "base.json"
        rates: Mapping[str, Mapping[str, Any]] = read_object(path).get("base", {})
        check_modes(f"{path}: base", rates, TALLY)
        return rates

    @property
    def suite_name(self) -> str:
        """The suite of the run's tasks, as its settings have it.

        Raises:
            RecordError: the settings do not say it.
        """
        where = self.record.folder / "config.yaml"
        check_fields(f"{where}: env", self.settings.get("env"), {"suite": TEXT})
        return str(self.settings["env"]["suite"])

    @property
    def suite(self) -> str:
        """The suite with its version, so that results of other tasks are not compared with these."""
        tasks = self.results.get("tasks") or {}
        return f"{tasks.get('suite', '?')} {tasks.get('digest', '?')}"


def methods_of_runs(runs: Sequence[Path]) -> list[MethodOfRun]:
    """All methods of the runs, in order.

    Labels are different: a method's name within one run; among several the run's before it, and as many of the folders
    above as tell them apart.

    Raises:
        RecordError: one of the folders has no record, or a method is named twice.
    """
    records = [record for run in runs for record in find_records(run)]
    folders = [record.folder.resolve() for record in records]
    twice = next((folder for number, folder in enumerate(folders) if folder in folders[:number]), None)
    if twice is not None:
        raise RecordError(f"expected different runs or methods, got {twice} twice; name each once")
    several = len({run.resolve() for run in runs}) > 1
    labels = _labels([record.folder.absolute() for record in records], 2 if several else 1)
    return [MethodOfRun(label, record) for label, record in zip(labels, records, strict=True)]


def _labels(folders: Sequence[Path], parts: int) -> list[str]:
    """The last parts of each path, at least so many, and as many as all need to be different."""
    longest = max(len(folder.parts) for folder in folders)
    tried = (["/".join(folder.parts[-count:]) for folder in folders] for count in range(parts, longest + 1))
    return next(labels for labels in tried if len(set(labels)) == len(labels))
