"""WebJudge: a language model reads a trajectory of Online-Mind2Web in three stages, and says success or failure.

1. The task's key points, from its text.
2. Each picture: how much it shows of what is necessary, 1 to 5.
3. The verdict, from key points, actions, and the pictures that reach the threshold.

Online-Mind2Web (Xue et al. 2025), section 4, with our own wording (:mod:`.prompts`). Where the official script counts
an answer without a status, or a failed request, as a failure of the agent, there is no verdict here.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from bepa_torchrl.endpoint import AnswerError, ChatModel, EndpointError, asked
from bepa_torchrl.evaluation.web import prompts
from bepa_torchrl.evaluation.web.trajectories import Trajectory, TrajectoryError
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.types import Verdict

THRESHOLD = 3
MOST_PICTURES = 50


@dataclass(frozen=True, slots=True)
class Judgement:
    """A judge's verdict: an opinion of a language model, no result of a verifier.

    Args:
        success: whether the judge says that the task was completed.
        judge: model and edition of the prompts.
        key_points: the key points of the task.
        scores: the scores of all pictures, 1 to 5; 0: the judge gave none.
        shown: how many pictures the verdict was made with.
        response: the text of the verdict.
    """

    success: bool
    judge: str
    key_points: str
    scores: tuple[int, ...]
    shown: int
    response: str

    @property
    def verdict(self) -> Verdict:
        """As a verifier's result, 1 or 0, which names the judge: its reward can be wrong, and be gamed."""
        return Verdict(float(self.success), judge=self.judge)


def judge_trajectory(
    trajectory: Trajectory, model: ChatModel, *, threshold: int = THRESHOLD, most: int = MOST_PICTURES
) -> Judgement:
    """The judgement of a trajectory.

    Args:
        trajectory: what the agent did.
        model: the judge; its requests for pictures are open at the same time.
        threshold: least score of a picture that the verdict is made with.
        most: number of these pictures at most; the first ones are taken. All pictures are scored.

    Raises:
        TrajectoryError: a picture cannot be read.
        AnswerError: the judge named no status, or no key points.
        EndpointError: the endpoint gave no answer.
    """
    task, name = trajectory.task, trajectory.task_id
    request = _messages(prompts.KEY_POINTS, f"Task: {task}")
    key_points = model.ask(request, prompts.read_key_points, what=f"{name}: key points")
    text = f"Task: {task}\n\nKey points:\n{key_points}\n\nThe screenshot:"

    def scored(number: int) -> tuple[int, str]:
        request = _messages(prompts.PICTURE, text, [jpeg_part(trajectory.pictures[number])])
        return _picture(model, request, f"{name}: picture {number}")

    answers = dict(asked(range(len(trajectory.pictures)), scored, at_once=model.endpoint.at_once))
    chosen = [number for number in sorted(answers) if answers[number][0] >= threshold][:most]
    remarks = [answers[number][1] for number in chosen]
    parts = [jpeg_part(trajectory.pictures[number]) for number in chosen]
    words = prompts.verdict_text(task, key_points, trajectory.history, remarks, len(chosen))
    response = model.ask(_messages(prompts.VERDICT, words, parts), _with_status, what=f"{name}: verdict")
    return Judgement(
        prompts.read_status(response),
        judge_name(model),
        key_points,
        tuple(answers[number][0] for number in sorted(answers)),
        len(chosen),
        response,
    )


def judged(trajectory: Trajectory, model: ChatModel) -> Judgement:
    """The judgement of a rollout, as a reward for training; a judge that fails is an infrastructure failure.

    Raises:
        DesktopError: the trajectory is torn, or the judge gave no verdict (``evaluator_failed``), so that the episode
            is masked and never scored.
    """
    try:
        return judge_trajectory(trajectory, model)
    except (TrajectoryError, AnswerError, EndpointError) as error:
        raise DesktopError(FailureReason.evaluator_failed, f"no verdict of the judge: {error}") from error


def judge_name(model: ChatModel) -> str:
    """The model and the edition of the prompts, which say together whose opinion a judgement is."""
    return f"{model.endpoint.model}, {prompts.EDITION}"


def jpeg_part(path: Path) -> dict[str, Any]:
    """A picture as a part of a message's content: JPEG, in full detail.

    Raises:
        TrajectoryError: it cannot be read.
    """
    buffer = io.BytesIO()
    try:
        with Image.open(path) as image:
            image.convert("RGB").save(buffer, format="JPEG")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise TrajectoryError(f"{path}: the picture cannot be read ({error})") from error
    url = f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url, "detail": "high"}}


def _picture(model: ChatModel, request: Sequence[dict[str, Any]], what: str) -> tuple[int, str]:
    """Score and remark of a picture; 0 if the judge names no score, as in the official script."""

    def read(answer: str) -> tuple[int, str]:
        return prompts.read_score(answer), prompts.read_reasoning(answer)

    try:
        return model.ask(request, read, what=what)
    except AnswerError:
        return 0, ""


def _with_status(answer: str) -> str:
    prompts.read_status(answer)
    return answer


def _messages(system: str, text: str, pictures: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": [{"type": "text", "text": text}, *pictures]},
    ]
