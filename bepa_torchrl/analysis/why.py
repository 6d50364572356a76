"""Why an update happened: from an optimiser step to its rows and their sources, and from a trace to its updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from bepa_torchrl.analysis.prepared import ExpertFile
from bepa_torchrl.analysis.records import Episode, MethodRecord
from bepa_torchrl.storage.json_lines import RecordError

_SHORTEST = 6  #: characters of a hash that name a trace
_LISTED = 5  #: names in a message


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """One optimiser step.

    Args:
        method: the method.
        update: the policy's version after the step.
        iteration: in which it was taken.
        episodes: those in the step, in order of group and slot.
        replaced: rollouts of its groups that injected traces replaced, by the id of the injected trace.
        plans: texts of the plans by which injected traces were self-rolled, by their hash.
    """

    method: str
    update: int
    iteration: int | None
    episodes: tuple[Episode, ...]
    replaced: Mapping[str, Episode]
    plans: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """As ``bepa why --json`` prints it."""
        replaced = {name: asdict(episode) for name, episode in self.replaced.items()}
        return {**_without(self, "episodes"), "episodes": [asdict(e) for e in self.episodes], "replaced": replaced}

    def lines(self) -> Iterator[str]:
        """The report: groups with an advantage and their episodes, then the others in one line."""
        injected = sum(episode.off_policy for episode in self.episodes)
        steps = sum(episode.n_steps for episode in self.episodes)
        groups = [list(members) for _, members in groupby(self.episodes, key=lambda episode: episode.group_id)]
        counts = f"{len(self.episodes)} episodes of {len(groups)} groups, {steps} steps, {injected} injected"
        yield f"{self.method}, update {self.update} (iteration {self.iteration}): {counts}"
        silent = [group for group in groups if not any(e.advantage or e.off_policy for e in group)]
        for group in groups:
            if group in silent:
                continue
            solved = sum(episode.reward == 1.0 for episode in group if not episode.off_policy)
            sampled = sum(not episode.off_policy or episode.id in self.replaced for episode in group)
            yield f"  group {group[0].group_id}, {group[0].task_id}: {solved} of {sampled} rollouts succeeded"
            for episode in group:
                yield f"    {_row(episode)}"
                if episode.id in self.replaced:
                    out = self.replaced[episode.id]
                    yield f"      in place of {out.id} (reward {_number(out.reward)}, {out.stop_reason})"
                if episode.off_policy:
                    yield f"      {source_text(episode)}"
                    yield from _plan_lines(episode.provenance, self.plans, "        ")
        if silent:
            tasks = ", ".join(f"{group[0].group_id} ({group[0].task_id})" for group in silent)
            yield f"  groups without an advantage, whose rows only count in the denominators: {tasks}"


@dataclass(frozen=True, slots=True)
class TraceReport:
    """What a trace did to a method's training.

    Args:
        method: the method.
        trace: as it was asked for.
        tasks: the tasks of the traces that it names.
        provenance: the provenance of these traces, each once.
        files: the prepared traces of these experts and tasks.
        injections: episodes that are copies of them, in order of iteration.
        refreshes: iterations in which the policy's own success replaced the cached trace of these tasks; empty in
            records of version 1.
        later: injected copies of those successes.
        plans: texts of the plans of these traces, by their hash.
    """

    method: str
    trace: str
    tasks: tuple[str, ...]
    provenance: tuple[Mapping[str, Any], ...]
    files: tuple[ExpertFile, ...]
    injections: tuple[Episode, ...]
    refreshes: tuple[int, ...]
    later: tuple[Episode, ...]
    plans: Mapping[str, str]

    @property
    def updates(self) -> list[int]:
        """The optimiser steps that the trace itself was in."""
        return sorted({update for episode in self.injections for update in episode.updates or ()})

    def to_json(self) -> dict[str, Any]:
        """As ``bepa why --json`` prints it."""
        lists = {name: [asdict(e) for e in getattr(self, name)] for name in ("injections", "later")}
        lists |= {"provenance": [dict(each) for each in self.provenance], "files": [asdict(f) for f in self.files]}
        return {**_without(self, *lists), **lists, "updates": self.updates}

    def lines(self) -> Iterator[str]:
        """The report: the trace's origin, each injection, and what followed it in the cache."""
        for each in self.provenance:
            yield f"{self.method}, {_provenance_text(each)}"
            yield from _plan_lines(each, self.plans, "    ")
        if not self.provenance:
            yield f"{self.method}, {', '.join(self.tasks)}"
        for trace in self.files:
            yield f"  {trace.file}{f', run {trace.run} of the log' if trace.run else ''}"
        counted = f"{len(self.injections)} injections, {len(self.updates)} updates"
        yield f"  tasks {', '.join(self.tasks)}: {counted}{': ' if self.updates else ''}{_numbers(self.updates)}"
        for episode in self.injections:
            yield f"    iteration {episode.iteration}, {_row(episode)}"
        if self.refreshes:
            yield f"  replaced in the cache by the policy's successes in iterations {_numbers(self.refreshes)}"
        for episode in self.later:
            yield f"    iteration {episode.iteration}, {_row(episode)}, {source_text(episode)}"


def why_update(record: MethodRecord, update: int, plans: Mapping[str, str] | None = None) -> UpdateReport:
    """The rows of one optimiser step.

    Args:
        record: the record of a method.
        update: the policy's version after the step, from 1.
        plans: the plans that the run prepared, by their hash.

    Raises:
        RecordError: the record is of version 1, or has no such update.
    """
    if record.version == 1:
        raise RecordError(
            f"{record.folder}: expected a record with optimiser steps, got version 1, which has none; "
            "use --trace, or train with this version"
        )
    rows = [episode for episode in record.episodes if update in (episode.updates or ())]
    if not rows:
        raise RecordError(f"{record.folder}: no update {update}; {_known(record.episodes)}")
    rows.sort(key=lambda episode: (episode.group_id, episode.slot, episode.off_policy))
    out = {(e.group_id, e.slot): e for e in record.episodes if e.replaced}
    pairs = {e.id: out[e.group_id, e.slot] for e in rows if e.off_policy and (e.group_id, e.slot) in out}
    texts = _plans_of([e.provenance for e in rows], plans)
    return UpdateReport(record.name, update, rows[0].iteration, tuple(rows), pairs, texts)


def why_trace(
    record: MethodRecord,
    trace: str,
    seeds: Sequence[Mapping[str, Any]] = (),
    files: Sequence[ExpertFile] = (),
    plans: Mapping[str, str] | None = None,
) -> TraceReport:
    """Every update that a trace was in.

    Args:
        record: the record of a method.
        trace: the hash of an expert's trace or of a plan (or its first six characters or more), a task's id, or the id
            of the rollout that an injected trace is a copy of.
        seeds: fields of provenance, and ``task_id``, of the traces that the run prepared: named even if none of them
            was injected.
        files: the expert's traces that the run prepared.
        plans: the plans that it prepared, by their hash.

    Raises:
        RecordError: nothing in the record or in ``seeds`` has that name.
    """
    episodes = record.episodes
    prepared = [seed for seed in seeds if _names(trace, seed["task_id"], seed)]
    injections = [
        e for e in episodes
        if e.off_policy and (e.copied_from == trace or (not e.copied_from and _names(trace, e.task_id, e.provenance)))
    ]  # fmt: skip
    tasks = dict.fromkeys([*(e.task_id for e in injections), *(str(seed["task_id"]) for seed in prepared)])
    if not tasks and any(e.task_id == trace for e in episodes):
        tasks = {trace: None}
    if not tasks:
        raise RecordError(f"{record.folder}: no trace {trace!r}; expected {_known_traces(episodes, seeds)}")
    origins = [*(e.provenance for e in injections if e.provenance), *(_only_provenance(seed) for seed in prepared)]
    provenance = {tuple(sorted(each.items(), key=lambda item: item[0])): each for each in origins}
    ids = {e.id for e in injections}
    return TraceReport(
        record.name,
        trace,
        tuple(tasks),
        tuple(provenance.values()),
        tuple(f for f in files if f.task_id in tasks and f.expert in {each["expert"] for each in provenance.values()}),
        tuple(injections),
        tuple(g["iteration"] for g in record.groups() if g["task_id"] in tasks and g["refreshed"]),
        tuple(e for e in episodes if e.off_policy and e.copied_from and e.task_id in tasks and e.id not in ids),
        _plans_of(origins, plans),
    )


def source_text(episode: Episode) -> str:
    """Where an injected trace is from, as one phrase."""
    if episode.copied_from:
        return f"copy of the policy's own rollout {episode.copied_from}"
    return _provenance_text(episode.provenance) if episode.provenance else f"{episode.source}, of an unknown trace"


def _provenance_text(provenance: Mapping[str, Any]) -> str:
    log = provenance["origin"] or "recorded for this run"
    name = f" {provenance['trace']}" if provenance.get("trace") else ""
    text = f"trace{name} of the expert {provenance['expert']} ({log})"
    if provenance["plan"] is None:
        return f"{text}, converted"
    late = f", with the plan from step {provenance['handover'] + 1}" if provenance.get("handover") else ""
    return f"{text}, self-rolled with plan {provenance['plan']}, attempt {provenance['attempt']}{late}"


def _plan_lines(provenance: Mapping[str, Any] | None, plans: Mapping[str, str], indent: str) -> Iterator[str]:
    """The lines of a trace's plan."""
    text = plans.get(str((provenance or {}).get("plan")), "")
    yield from (indent + line for line in text.splitlines())


def _plans_of(origins: Sequence[Mapping[str, Any] | None], plans: Mapping[str, str] | None) -> dict[str, str]:
    """The plans that are named in these fields of provenance, by their hash."""
    named = {str(origin["plan"]) for origin in origins if origin and origin.get("plan")}
    return {digest: text for digest, text in (plans or {}).items() if digest in named}


def _row(episode: Episode) -> str:
    version = f"version {episode.policy_version}"
    age = f", {episode.age} updates old" if episode.age is not None else ""
    updates = f", updates {_numbers(episode.updates)}" if len(episode.updates or ()) > 1 else ""
    advantage = "no advantage" if episode.advantage is None else f"advantage {episode.advantage:+.3f}"
    return f"{episode.id} {episode.origin}: reward {_number(episode.reward)}, {advantage}, {version}{age}{updates}"


def _names(trace: str, task_id: str, provenance: Mapping[str, Any] | None) -> bool:
    """Whether a name is that of this trace."""
    hashes = [str((provenance or {}).get(key) or "") for key in ("trace", "plan")]
    return trace == task_id or (len(trace) >= _SHORTEST and any(each.startswith(trace) for each in hashes if each))


def _only_provenance(seed: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in seed.items() if key != "task_id"}


def _known(episodes: Sequence[Episode]) -> str:
    updates = {update for episode in episodes for update in episode.updates or ()}
    return f"expected {min(updates)} to {max(updates)}" if updates else "it has none, since no step was taken so far"


def _known_traces(episodes: Sequence[Episode], seeds: Sequence[Mapping[str, Any]]) -> str:
    hashes = [e.provenance.get("trace") for e in episodes if e.provenance] + [seed.get("trace") for seed in seeds]
    known = list(dict.fromkeys(str(each) for each in hashes if each))[:_LISTED]
    listed = f", such as {', '.join(known)}" if known else ""
    return f"the hash of an expert's trace or plan, or a task's id{listed}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _numbers(values: Sequence[int] | None) -> str:
    return ", ".join(map(str, values or ()))


def _without(report: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(report, name) for name in report.__slots__ if name not in names}
