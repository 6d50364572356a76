"""A file of plans (``plans.jsonl``): ``bepa experts plan`` writes it, ``expert.plans`` names it. Imports no torch."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bepa_torchrl.endpoint import AnswerError, ChatModel, asked
from bepa_torchrl.experts.plan import PlanSource, check_length, parse_plan, plan_from_trace, plan_hash, plan_messages
from bepa_torchrl.experts.trace import ExpertTrace, TraceError, load_trace
from bepa_torchrl.storage.json_lines import json_line, read_lines
from osworld_gym.atomic import write_text

if TYPE_CHECKING:
    from bepa_torchrl.rollout.stages import StageProgress

PLANS = "plans.jsonl"
Phi = Callable[[ExpertTrace], str]  #: φ: trace → plan; raises TraceError for a trace that has none


@dataclass(frozen=True, slots=True)
class PlanMethod:
    """How plans are made.

    Args:
        method: ``rule`` or ``model``.
        source: input of the plan, ``raw`` or ``converted``.
        model: name of the model; None by rule.
        images: whether the model gets the screenshots.
    """

    method: str = "rule"
    source: PlanSource = "raw"
    model: str | None = None
    images: bool = False


@dataclass(frozen=True, slots=True)
class Written:
    """The result of :func:`write_plans`: plans that were there, plans added, and (trace, reason) of those refused."""

    before: int
    added: int
    refused: tuple[tuple[str, str], ...]


class PlanFile:
    """The lines of a file of plans, to which a job appends one for each plan; thread-safe. A killed job goes on.

    A line has ``task``, ``expert``, ``run`` (the run's folder below its source), ``trace`` (its content hash),
    ``plan``, ``plan_hash``, and the :class:`PlanMethod`. One that a killed process left incomplete is removed.

    Raises:
        TraceError: it has plans by another method. RecordError: a line is damaged. OSError: it cannot be read.
    """

    def __init__(self, path: Path, method: PlanMethod) -> None:
        self.path, self.method = path, method
        self._lock = threading.Lock()
        lines = _lines(path) if path.exists() else []
        other = [line for line in lines if any(line.get(name) != value for name, value in asdict(method).items())]
        if other:
            raise TraceError(
                f"{path}: has plans by another method ({_described(other[0])}, now {_described(asdict(method))}); "
                "give another --out"
            )
        text = "".join(map(json_line, lines))
        if path.exists() and path.read_text(encoding="utf-8") != text:
            write_text(path, text)
        self.traces = {str(line["trace"]) for line in lines}  #: content hashes of the traces that have a plan

    def add(self, trace: ExpertTrace, digest: str, plan: str) -> None:
        """Appends a plan of a trace, whose content hash is ``digest``. Raises OSError if the disk is full."""
        names = {"task": trace.task_id, "expert": trace.expert, "run": trace.run, "trace": digest}
        line = json_line({**names, "plan": plan, "plan_hash": plan_hash(plan), **asdict(self.method)})
        with self._lock:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line)
            self.traces.add(digest)


@dataclass(frozen=True, slots=True)
class Plans:
    """φ from a file: the plan of each trace, by the trace's content hash."""

    path: Path
    by_trace: Mapping[str, str]

    def __call__(self, trace: ExpertTrace) -> str:
        """The plan of a trace. Raises TraceError if the file has none."""
        try:
            return self.by_trace[trace.content_hash]
        except KeyError:
            raise TraceError(f"{trace.where}: {self.path} has no plan of it; run bepa experts plan again") from None


def read_plans(path: Path) -> Plans:
    """The plans of a file.

    Raises:
        TraceError: it cannot be read, has no plan, or an empty one.
    """
    try:
        lines = _lines(path)
        plans = {str(line["trace"]): str(line["plan"]) for line in lines}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TraceError(f"{path}: not a file of plans of `bepa experts plan` ({error})") from error
    empty = [str(line.get("task")) for line in lines if not str(line["plan"]).strip()]
    if empty or not plans:
        what = f"the plan of {empty[0]} is empty" if empty else "has no plan"
        raise TraceError(f"{path}: {what}; make it again with bepa experts plan")
    return Plans(path, plans)


def prepared_plans(folder: Path, source: str) -> dict[str, str]:
    """Plans by hash: those of a file of plans, and those that the rule makes of the expert's traces.

    Args:
        folder: the preparation of a run; traces and lines that are damaged have no plan.
        source: ``raw`` or ``converted``, the setting ``expert.plan_source``.
    """
    plans = {}
    for path in sorted((folder / "experts" / "traces").glob("*/*.json")):
        try:
            plan = plan_from_trace(load_trace(path), source="converted" if source == "converted" else "raw")
        except (TraceError, OSError):
            continue
        plans[plan_hash(plan)] = plan
    try:
        written = read_plans(folder / PLANS).by_trace if (folder / PLANS).exists() else {}
    except TraceError:
        written = {}
    return plans | {plan_hash(plan): plan for plan in written.values()}


def write_plans(
    traces: Iterable[ExpertTrace], phi: Phi, file: PlanFile, *, at_once: int = 1, progress: StageProgress
) -> Written:
    """Makes a plan of each trace that has none in the file, and appends it.

    Args:
        traces: expert traces.
        phi: makes a plan.
        file: where they are kept.
        at_once: maximum number of plans that are made at the same time.
        progress: shows how far it is.

    Raises:
        EndpointError: the endpoint gave no answer. OSError: the disk is full. The plans before it are kept.
    """
    by_hash = {trace.content_hash: trace for trace in traces}
    missing = {digest: trace for digest, trace in by_hash.items() if digest not in file.traces}
    before, refused = len(by_hash) - len(missing), []
    progress.begin("plans", len(by_hash), before)

    def make(item: tuple[str, ExpertTrace]) -> str | ValueError:
        try:
            plan = phi(item[1])
        except (TraceError, AnswerError) as error:
            return error
        file.add(item[1], item[0], plan)
        return plan

    for (_, trace), made in asked(missing.items(), make, at_once=at_once):
        if isinstance(made, ValueError):
            refused.append((trace.where, str(made)))
        progress.advance()
    return Written(before, len(missing) - len(refused), tuple(refused))


def phi_by_rule(method: PlanMethod, max_characters: int | None = None) -> Phi:
    """φ by rule; a plan that is too long is refused as a TraceError."""

    def phi(trace: ExpertTrace) -> str:
        plan = plan_from_trace(trace, source=method.source)
        try:
            return check_length(plan, max_characters)
        except ValueError as error:
            raise TraceError(f"{trace.where}: its plan {error}") from error

    return phi


def phi_by_model(model: ChatModel, method: PlanMethod, max_characters: int | None = None) -> Phi:
    """φ by a language model with the paper's prompt; an answer that is no plan is asked for again, then refused."""

    def phi(trace: ExpertTrace) -> str:
        messages = plan_messages(trace, source=method.source, images=method.images)
        return model.ask(messages, lambda reply: parse_plan(reply, max_characters=max_characters), what=trace.where)

    return phi


def _lines(path: Path) -> Sequence[dict[str, Any]]:
    lines = read_lines(path)
    if not all(isinstance(line, dict) for line in lines):
        raise TraceError(f"{path}: expected one JSON object per line, got {json.dumps(lines)[:80]}")
    return lines


def _described(method: Mapping[str, Any]) -> str:
    by = "rule" if method.get("method") == "rule" else f"{method.get('model')}"
    return f"by {by}, {method.get('source')} traces{', with images' if method.get('images') else ''}"
