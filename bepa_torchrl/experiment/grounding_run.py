"""Plays a grounding suite: one response per item, appended to a folder, none asked for twice.

settings.yaml   what the evaluation is of; it goes on with the same settings only
answers.jsonl   per item its response, the point or letter that was read, and whether it is right
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from PIL import Image

from bepa_torchrl.data.seeding import Stream, episode_key
from bepa_torchrl.evaluation.grounding.answers import NoPoint, answered_letter, answered_point
from bepa_torchrl.evaluation.grounding.files import GroundingSuite
from bepa_torchrl.evaluation.grounding.items import Item, Question
from bepa_torchrl.evaluation.grounding.scores import Scored, score_item, score_question
from bepa_torchrl.experiment.config import settings_to_yaml
from bepa_torchrl.experiment.evaluated_policy import EvaluatedPolicy, HostedModel, evaluated_policy
from bepa_torchrl.experiment.evaluation_folder import claim
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.rollout.stages import StageProgress
from bepa_torchrl.storage.json_lines import json_line, read_lines
from bepa_torchrl.storage.lock import locked
from osworld_gym.action_text.registry import action_text
from osworld_gym.atomic import write_text
from osworld_gym.types import PromptContext

ANSWERS = "answers.jsonl"
_ASK = "Answer with the letter of the right option only."


def play_grounding(
    settings: Settings,
    suite: GroundingSuite,
    items: Sequence[Item | Question],
    folder: Path,
    *,
    name: str,
    digest: str,
    temperature: float,
    progress: StageProgress,
    hosted: HostedModel | None = None,
) -> tuple[list[Scored], dict[str, Any]]:
    """Asks for every item that has no answer yet; returns the scores in the items' order, and how they were measured.

    Args:
        settings: of the policy; its prompt is ``policy.preset``, its pixel budget that of its image processor.
        suite: the suite.
        items: all of its items.
        folder: the folder of the evaluation.
        name: the name of the suite.
        digest: the digest of the suite's files.
        temperature: the temperature of the sampling; 0 is greedy.
        progress: shows how far it is.
        hosted: is asked instead of the settings' checkpoint.

    Raises:
        ConfigError: the folder has an evaluation with other settings.
        EndpointError: the endpoint gives no answer; what was answered is kept.
        OSError: the folder cannot be written; what was answered is kept.
    """
    identity = settings_to_yaml(settings) + f"# suite {name}, files {digest}, temperature {temperature:g}\n"
    identity += "" if hosted is None else hosted.identity
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ANSWERS
    with locked(folder):
        claim(folder, identity)
        known = _known(path)
        missing = [(number, item) for number, item in enumerate(items) if item.id not in known]
        progress.begin(name, len(items), len(items) - len(missing))
        with evaluated_policy(settings, hosted) as policy, path.open("a", encoding="utf-8") as file:
            size = settings.policy.max_rows
            for start in range(0, len(missing), size):
                for line in _answers(settings, policy, missing[start : start + size], temperature):
                    file.write(json_line(line))
                    known[line["id"]] = _scored(line)
                    progress.advance()
                file.flush()
    facts = {
        "suite": name,
        "digest": digest,
        "published_items": suite.items,
        "policy": settings.policy.checkpoint,
        "action_text": settings.policy.action_text,
        "preset": settings.policy.preset,
        "scaling": asdict(policy.scaling),
        "temperature": temperature,
        "max_new_tokens": settings.policy.max_new_tokens,
    } | ({} if hosted is None else hosted.facts)
    return [known[item.id] for item in items], facts


def _answers(
    settings: Settings, policy: EvaluatedPolicy, numbered: Sequence[tuple[int, Item | Question]], temperature: float
) -> Iterator[dict[str, Any]]:
    """The lines of a batch of items."""
    images = {item.id: _png(item.image) for _, item in numbered}
    asked = [(number, item) for number, item in numbered if isinstance(images[item.id], bytes)]
    contexts = [PromptContext(_words(item), (_bytes(images[item.id]),)) for _, item in asked]
    prompts = policy.sampler.renderer.render(contexts) if contexts else []
    fitting = [(pair, prompt) for pair, prompt in zip(asked, prompts, strict=True) if prompt is not None]
    keys = [(*episode_key(settings.eval.seed, Stream.EVALUATION, 0, number, 0), 0) for (number, _), _ in fitting]
    asks = [prompt for _, prompt in fitting]
    responses = policy.sampler.sample(asks, keys, temperature=temperature) if asks else []
    texts, refused = {}, {}
    for ((_, item), _), key, response in zip(fitting, keys, responses, strict=True):
        reason = policy.refusal(key[:-1])
        if reason is None:
            texts[item.id] = response.text
        else:
            refused[item.id] = f"refused: {reason}"
    for _, item in numbered:
        image = images[item.id]
        if item.id in texts:
            yield _line(settings, policy, item, texts[item.id], _bytes(image))
        else:
            long = "the prompt does not fit policy.max_prompt_tokens"
            reason = image if isinstance(image, str) else refused.get(item.id, long)
            yield {"id": item.id, "response": None, "answer": None, "reason": reason, "scored": asdict(_lost(item))}


def _line(settings: Settings, policy: EvaluatedPolicy, item: Item | Question, text: str, png: bytes) -> dict[str, Any]:
    answer: Any
    if isinstance(item, Question):
        letter = answered_letter(text, list(item.options))
        scored, answer = score_question(item, letter), letter
    else:
        with Image.open(io.BytesIO(png)) as image:
            size = image.size
        point = answered_point(text, action_text(settings.policy.action_text), policy.scaling, size)
        scored = score_item(item, point, size)
        answer = str(point) if isinstance(point, NoPoint) else [*point]
    return {"id": item.id, "response": text, "answer": answer, "reason": None, "scored": asdict(scored)}


def _words(item: Item | Question) -> str:
    if isinstance(item, Item):
        return item.instruction
    options = "\n".join(f"{letter}. {text}" for letter, text in item.options.items())
    return f"{item.question}\n{options}\n{_ASK}"


def _png(path: Path) -> bytes | str:
    """The image as PNG bytes, or why there is none."""
    try:
        data = path.read_bytes()
        with Image.open(io.BytesIO(data)) as image:
            image.load()  # a truncated file
            if image.format == "PNG":
                return data
            buffer = io.BytesIO()
            image.convert("RGB").save(buffer, format="PNG", compress_level=1)
            return buffer.getvalue()
    except FileNotFoundError:
        return "the image is missing"
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:  # Pillow's, of damaged files
        return f"the image cannot be read ({error})"


def _bytes(image: bytes | str) -> bytes:
    assert isinstance(image, bytes)
    return image


def _lost(item: Item | Question) -> Scored:
    if isinstance(item, Question):
        return Scored(item.id, None, groups=item.groups, options=len(item.options))
    return Scored(item.id, None, groups=item.groups, refusal=item.region is None)


def _known(path: Path) -> dict[str, Scored]:
    """The answers of earlier processes; items without a result are asked again."""
    if not path.exists():
        return {}
    kept = [line for line in read_lines(path) if line["scored"]["right"] is not None]
    write_text(path, "".join(map(json_line, kept)))  # also without a line that was torn by a kill
    return {line["id"]: _scored(line) for line in kept}


def _scored(line: Mapping[str, Any]) -> Scored:
    return Scored(**line["scored"])
