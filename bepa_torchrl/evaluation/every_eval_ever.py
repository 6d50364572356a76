"""An evaluation as a record of "Every Eval Ever", a schema that databases of evaluations share, and its rows.

every_eval_ever.json                                            the record
data/<suite>/<developer>/<model>/<UUID>_samples.jsonl           a row per episode or item that has a result

The schema is that of version 0.3.0 of the package every-eval-ever (eval.schema.json, instance_level_eval.schema.json).
A row requires a score, so that what has no result is no row; the record's details have their number.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bepa_torchrl.evaluation.statistics import LEVEL
from bepa_torchrl.storage.json_lines import json_line
from osworld_gym.atomic import write_text

SCHEMA = "0.3.0"
RECORD = "every_eval_ever.json"
_RESULT = "success_rate"


@dataclass(frozen=True, slots=True)
class Sample:
    """One episode, or one answer to an item.

    Args:
        id: the ID of the task or item.
        text: the instruction or question.
        responses: the policy's.
        score: in [0, 1].
        right: whether it is a success.
        agentic: whether it is an episode; False: a single answer.
        reference: the right answer, where there is one as text.
        choices: the choices of a question.
        seconds: duration; None if nobody knows.
        details: more about it.
    """

    id: str
    text: str
    responses: tuple[str, ...]
    score: float
    right: bool
    agentic: bool = True
    reference: tuple[str, ...] = ()
    choices: tuple[str, ...] | None = None
    seconds: float | None = None
    details: Mapping[str, str] | None = None


def write_record(folder: Path, card: Mapping[str, Any], samples: Iterable[Sample], *, created: int) -> Path | None:
    """Writes the record and its rows into the folder of an evaluation; returns the record's file.

    Args:
        folder: the folder of the evaluation.
        card: the card of the evaluation.
        samples: what has a result.
        created: time of the record, in seconds since 1970.

    Returns:
        None, without a file, if the card has no score: the schema requires one.

    Raises:
        OSError: the folder cannot be written.
    """
    if card["score"] is None:
        return None
    record = make_record(card, created=created)
    lines = "".join(json_line(row_of(record, sample)) for sample in samples)
    checksum = hashlib.sha256(lines.encode())
    name = uuid.UUID(bytes=checksum.digest()[:16], version=4)
    developer, model = record["model_info"]["id"].split("/")
    path = f"data/{record['evaluation_results'][0]['evaluation_name']}/{developer}/{model}/{name}_samples.jsonl"
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    for old in (folder / path).parent.glob("*_samples.jsonl"):
        old.unlink()
    write_text(folder / path, lines)
    record["detailed_evaluation_results"] = {
        "format": "jsonl",
        "file_path": path,
        "hash_algorithm": "sha256",
        "checksum": checksum.hexdigest(),
        "total_rows": lines.count("\n"),
    }
    write_text(folder / RECORD, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return folder / RECORD


def make_record(card: Mapping[str, Any], *, created: int) -> dict[str, Any]:
    """The record of a card that has a score, without the reference to its rows.

    Who publishes it is not known here: ``source_organization_name`` and ``evaluator_relationship`` are to be filled in.
    A part of a suite has a name of its own, so that its score is not taken for one on the suite.
    """
    limited, model = card.get("limited"), model_id(card.get("policy"))
    first = "" if limited is None else f"-first-{limited['tasks']}-of-{limited['of']}"
    suite = _name(f"{card['suite']}{first}")
    record = {
        "schema_version": SCHEMA,
        "evaluation_id": f"{suite}/{model}/{created}",
        "retrieved_timestamp": str(created),
        "source_metadata": {
            "source_name": "bepa eval",
            "source_type": "evaluation_run",
            "source_organization_name": "unknown",
            "evaluator_relationship": "other",
        },
        "eval_library": {"name": "osworld-gym", "version": version("osworld-gym")},
        "model_info": {
            "name": model.partition("/")[2],
            "id": model,
            "additional_details": {"deployment_type": "self_deployed", "model_availability": "unknown"},
        },
    }
    return record | {"evaluation_results": [_result(suite, card)]}


def _result(suite: str, card: Mapping[str, Any]) -> dict[str, Any]:
    low, high = card["interval"]
    passes = len(card["passes"])
    details = ("denominators", "domains", "feasible", "infeasible", "pass_at_k", "no_result", "format_errors")
    return {
        "evaluation_result_id": _RESULT,
        "evaluation_name": suite,
        "source_data": {"dataset_name": suite, "source_type": "other"} | _texts(card, ("digest", "list")),
        "metric_config": {
            "metric_id": _RESULT,
            "metric_unit": "proportion",
            "lower_is_better": False,
            "score_type": "continuous",
            "min_score": 0,
            "max_score": 1,
        },
        "score_details": {
            "score": card["score"],
            "details": _texts(card, details)["additional_details"],
            "uncertainty": {
                "confidence_interval": {
                    "lower": low,
                    "upper": high,
                    "confidence_level": LEVEL,
                    "method": "wilson" if passes == 1 else "wilson, effective number of episodes",
                },
                "num_samples": sum(each["success"] + each["failure"] for each in card["passes"]),
            },
        },
        "generation_config": _generation(card),
    }


def _generation(card: Mapping[str, Any]) -> dict[str, Any]:
    budget, tokens = card.get("steps_budget"), card.get("max_new_tokens")
    arguments: dict[str, Any] = {"temperature": card.get("temperature")}
    arguments |= {} if tokens is None else {"max_tokens": tokens}
    arguments |= {} if budget is None else {"eval_limits": {"message_limit": budget}}
    arguments |= {"sandbox": {"type": card["provider"]}} if card.get("provider") else {}
    return {"generation_args": arguments} | _texts(
        card, ("action_text", "preset", "scaling", "seed", "evaluators", "versions")
    )


def row_of(record: Mapping[str, Any], sample: Sample) -> dict[str, Any]:
    """The row of one sample. Screenshots are in no row: an episode's messages are the instruction and the responses."""
    messages = [{"turn_idx": 0, "role": "user", "content": sample.text}]
    messages += [
        {"turn_idx": turn, "role": "assistant", "content": text} for turn, text in enumerate(sample.responses, start=1)
    ]
    return {
        "schema_version": SCHEMA,
        "evaluation_id": record["evaluation_id"],
        "model_id": record["model_info"]["id"],
        "evaluation_name": record["evaluation_results"][0]["evaluation_name"],
        "evaluation_result_id": _RESULT,
        "sample_id": sample.id,
        "sample_hash": hashlib.sha256((sample.text + "".join(sample.reference)).encode()).hexdigest(),
        "interaction_type": "agentic" if sample.agentic else "single_turn",
        "input": {
            "raw": sample.text,
            "reference": [*sample.reference],
            "choices": None if sample.choices is None else [*sample.choices],
        },
        "output": None if sample.agentic else {"raw": [*sample.responses]},
        "messages": messages if sample.agentic else None,
        "answer_attribution": [],
        "evaluation": {
            "score": sample.score,
            "is_correct": sample.right,
            "num_turns": len(sample.responses) or None,
        },
        "performance": None if sample.seconds is None else {"latency_ms": 1000 * sample.seconds},
        "metadata": dict(sample.details or {}),
    }


def model_id(policy: object) -> str:
    """``developer/model``: that of a Hugging Face repository, and ``local`` for what is none, such as a folder."""
    parts = [_name(part) for part in str(policy or "unknown").rstrip("/").split("/")]
    repository = len(parts) == 2 and not Path(str(policy)).exists()
    return "/".join(parts) if repository else f"local/{parts[-1]}"


def _name(text: object) -> str:
    """A part of a path."""
    return re.sub(r"[^\w.-]", "-", str(text)).strip(".") or "unknown"


def _texts(card: Mapping[str, Any], names: Iterable[str]) -> dict[str, dict[str, str]]:
    """The entry ``additional_details``, which has values that the schema has no key for, as text."""
    values = {name: card[name] for name in names if card.get(name) is not None}
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    return {"additional_details": texts}
