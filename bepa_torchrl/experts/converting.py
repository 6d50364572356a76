"""Converts many traces (D_conv), by rule or with a model's thoughts, and counts what was dropped, by reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bepa_torchrl.endpoint import AnswerError, ChatModel, asked, without_thinking
from bepa_torchrl.experts.conversion import Complete, Converted, convert_trace
from bepa_torchrl.experts.trace import ExpertTrace, TraceError
from osworld_gym.uitars.coords import ImageScaling
from osworld_gym.uitars.parse import thought_of

if TYPE_CHECKING:
    from bepa_torchrl.rollout.stages import StageProgress

MAX_THOUGHT = 1000  #: characters; the prompt asks for one to three sentences


@dataclass(frozen=True, slots=True)
class Conversion:
    """A trace and what conversion made of it.

    Args:
        trace: the expert's trace.
        converted: the result; None if it was refused.
        refused: why; empty if it was not.
    """

    trace: ExpertTrace
    converted: Converted | None
    refused: str = ""

    def to_json(self) -> dict[str, Any]:
        """The result as JSON: the counts, and what was dropped of the trace; steps are counted from 1."""
        trace, converted = self.trace, self.converted
        named = {"task": trace.task_id, "expert": trace.expert, "run": trace.run, "steps": len(trace.steps)}
        if converted is None:
            return {**named, "refused": self.refused}
        return {
            **named,
            "responses": len(converted.pairs),
            "faithful": converted.faithful,
            "dropped": [[index + 1, reason] for index, reason in converted.dropped],
            "inexact": [[index + 1, reason] for index, reason in converted.inexact],
        }


def convert_traces(
    traces: Sequence[ExpertTrace],
    scaling: ImageScaling,
    action_text: str,
    *,
    complete: Complete | None = None,
    at_once: int = 1,
    progress: StageProgress,
) -> list[Conversion]:
    """Converts each trace, in the given order; one that cannot be converted is refused with its reason.

    Args:
        traces: expert traces.
        scaling: the scaling of the policy's image processor.
        action_text: the action text in which the responses are written.
        complete: writes the thoughts; None: by rule.
        at_once: maximum number of traces that are converted at the same time.
        progress: shows how far it is.

    Raises:
        EndpointError: the endpoint gave no answer. OSError: an answer cannot be kept.
    """
    progress.begin("converted traces", len(traces), 0)

    def work(numbered: tuple[int, ExpertTrace]) -> Conversion:
        trace = numbered[1]
        try:
            return Conversion(trace, convert_trace(trace, scaling, complete=complete, action_text=action_text))
        except (TraceError, AnswerError) as error:
            return Conversion(trace, None, str(error))

    conversions = {}
    for (number, _), conversion in asked(enumerate(traces), work, at_once=at_once):
        conversions[number] = conversion
        progress.advance()
    return [conversions[number] for number in range(len(traces))]


def thoughts_of(model: ChatModel) -> Complete:
    """A function that asks a model for ``Thought: … Action: …``; anything else is asked for again, then refused."""

    def check(answer: str) -> str:
        reply = without_thinking(answer)
        thought = thought_of(reply).strip() if "Action:" in reply else ""
        if not 0 < len(thought) <= MAX_THOUGHT:
            raise ValueError(f"expected a thought of at most {MAX_THOUGHT} characters and an action")
        return reply

    def complete(prompt: str) -> str:
        return model.ask([{"role": "user", "content": prompt}], check, what="a thought of a converted step")

    return complete


def totals(conversions: Sequence[Conversion]) -> dict[str, Any]:
    """Counts: ``traces``, ``converted``, ``faithful``, ``responses``; steps ``dropped`` and ``inexact``, by reason."""
    converted = [each.converted for each in conversions if each.converted is not None]
    return {
        "traces": len(conversions),
        "converted": len(converted),
        "faithful": sum(each.faithful for each in converted),
        "responses": sum(len(each.pairs) for each in converted),
        "dropped": dict(Counter(reason for each in converted for _, reason in each.dropped)),
        "inexact": dict(Counter(reason for each in converted for _, reason in each.inexact)),
    }


def lines(conversions: Sequence[Conversion]) -> Iterator[str]:
    """The report for a person: counts, a line per reason, a line per trace that was refused."""
    counts = totals(conversions)
    yield f"{counts['converted']} of {counts['traces']} traces converted, {counts['faithful']} of them faithful"
    for what, name in (("dropped", "steps dropped"), ("inexact", "steps not exact")):
        for reason, count in sorted(counts[what].items(), key=lambda item: -item[1]):
            yield f"{name:<16} {reason:<18} {count}"
    for each in conversions:
        if each.converted is None:
            yield f"refused          {each.refused}"
