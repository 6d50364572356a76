"""Plays converted traces on desktops: whether the verifier accepts what an expert's log says was a success."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bepa_torchrl.experts.converting import Conversion
from osworld_gym.tasks.task import Task
from osworld_gym.types import StepResult, StopReason
from osworld_gym.vector import DesktopVector

if TYPE_CHECKING:
    from bepa_torchrl.rollout.stages import StageProgress

RETRIES = 2  #: of a replay whose desktop failed


@dataclass(frozen=True, slots=True)
class Replay:
    """One trace to play: its task, the desktop's seed, and the responses in order."""

    task: Task
    seed: int
    responses: tuple[str, ...]
    tried: int = 0


def play_all(vector: DesktopVector, replays: Sequence[Replay], progress: StageProgress) -> list[StepResult]:
    """The last result of each replay, in the given order; one whose desktop failed is played again ``RETRIES`` times.

    A replay without a response that ends the episode is verified after its last one.
    """
    progress.begin("replays", len(replays), 0)
    waiting = deque(enumerate(replays))
    running: dict[int, tuple[int, Replay, Iterator[str]]] = {}
    results: dict[int, StepResult] = {}

    def start(desktop: int) -> None:
        if waiting:
            number, each = waiting.popleft()
            running[desktop] = number, each, iter(each.responses)
            vector.send_reset(desktop, each.task, each.seed)

    for desktop in range(len(vector)):
        start(desktop)
    while running:
        for desktop, result in vector.receive():
            number, each, responses = running[desktop]
            if not result.done:
                response = next(responses, None)
                if response is None:
                    vector.send_end(desktop, StopReason.max_steps)
                else:
                    vector.send(desktop, response)
                continue
            del running[desktop]
            if result.failure is not None and each.tried < RETRIES:
                waiting.append((number, replace(each, tried=each.tried + 1)))
            else:
                results[number] = result
                progress.advance()
            start(desktop)
    return [results[number] for number in range(len(replays))]


def keep_accepted(
    conversions: Sequence[Conversion], tasks: Mapping[str, Task], vector: DesktopVector, progress: StageProgress
) -> list[Conversion]:
    """Plays the conversions; returns all of them, and refuses those whose replay the verifier does not accept.

    Args:
        conversions: those of the traces.
        tasks: by id, those of all traces.
        vector: desktops whose options have the policy's scaling and action text.
        progress: shows how far it is.
    """
    played = [number for number, each in enumerate(conversions) if each.converted is not None]
    results = play_all(vector, [_replay(conversions[number], tasks) for number in played], progress)
    kept = list(conversions)
    for number, result in zip(played, results, strict=True):
        reason = _refusal(result)
        if reason:
            kept[number] = Conversion(
                conversions[number].trace, None, f"{conversions[number].trace.where}: its replay {reason}"
            )
    return kept


def _replay(conversion: Conversion, tasks: Mapping[str, Task]) -> Replay:
    pairs = () if conversion.converted is None else conversion.converted.pairs
    return Replay(tasks[conversion.trace.task_id], conversion.trace.env_seed or 0, tuple(text for _, text in pairs))


def _refusal(result: StepResult) -> str:
    """Why a replay is not accepted; empty if it is."""
    if result.verdict is None:
        return f"could not be verified: the desktop failed ({result.failure}) each time; see osworld-gym doctor"
    if result.verdict.success:
        return ""
    why = f", {result.verdict.problem}" if result.verdict.problem else ""
    return (
        f"ended with {result.stop} and the verifier gave {result.verdict.score:g}{why}; record it on these desktops, "
        "or leave --replay out to take the log's word"
    )
