"""What an evaluation's folder keeps, as samples of "Every Eval Ever"."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from bepa_torchrl.evaluation.every_eval_ever import Sample
from bepa_torchrl.evaluation.grounding.items import Item, Question
from bepa_torchrl.evaluation.outcomes import Outcome, Result
from bepa_torchrl.storage.json_lines import stream_lines


def episode_samples(outcomes: Sequence[Outcome], episodes: Path) -> Iterator[Sample]:
    """The episodes that have a result, in the order of the file; then those that it does not have, without texts.

    Args:
        outcomes: the outcomes of all tasks and passes.
        episodes: ``episodes.jsonl`` of the evaluation; need not exist, since results of others have none.
    """
    known = {(each.task, each.attempt): each for each in outcomes if each.result is not Result.no_result}
    for line in stream_lines(episodes) if episodes.exists() else ():
        outcome = known.pop((line["task_id"], line["slot"]), None)
        if outcome is not None:
            yield _episode(outcome, line["instruction"], tuple(step["text"] for step in line["steps"]))
    for outcome in known.values():
        yield _episode(outcome, "", ())


def _episode(outcome: Outcome, instruction: str, responses: tuple[str, ...]) -> Sample:
    return Sample(
        outcome.task,
        instruction,
        responses,
        outcome.score or 0.0,
        outcome.result is Result.success,
        seconds=outcome.seconds or None,
        details={
            "domain": outcome.domain,
            "pass": str(outcome.attempt + 1),
            "feasible": str(outcome.feasible),
            "stop": outcome.stop,
        },
    )


def answer_samples(items: Sequence[Item | Question], answers: Path) -> Iterator[Sample]:
    """The answers that have a result, in the order of the file.

    Args:
        items: the items of the suite.
        answers: ``answers.jsonl`` of the evaluation.
    """
    known = {item.id: item for item in items}
    for line in stream_lines(answers):
        item, right = known[line["id"]], line["scored"]["right"]
        if right is None:
            continue
        yield _answer(item, line["response"], right, line["answer"])


def _answer(item: Item | Question, response: str, right: bool, answer: object) -> Sample:
    groups = {name: part if isinstance(part, str) else ", ".join(part) for name, part in item.groups.items()}
    details = groups | {"answer": str(answer)}
    if isinstance(item, Question):
        text, reference, choices = item.question, item.answer, tuple(item.options.values())
    else:
        text, reference, choices = item.instruction, str(item.region or "a refusal"), None
    return Sample(
        item.id,
        text,
        (response,),
        float(right),
        right,
        agentic=False,
        reference=(reference,),
        choices=choices,
        details=details,
    )
