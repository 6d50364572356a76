"""Runners whose ``action`` is an object: Claude and OpenAI's computer use. The source in it is in screen pixels."""

from __future__ import annotations

import json

from bepa_torchrl.experts.readers.family import Family, Sample, Texts, plain_texts
from bepa_torchrl.experts.readers.log import Line


def _objects(sample: Sample, *keys: str) -> bool:
    """Whether an action is an object with one of these keys."""
    actions = (line["action"] for line in sample.lines)
    parts = (part for action in actions for part in (action if isinstance(action, list) else [action]))
    return any(isinstance(part, dict) and set(keys) & set(part) for part in parts)


def claude_texts(line: Line) -> Texts:
    """The response is the first text block; the call is the tool's input."""
    said = plain_texts(line)
    action = line["action"]
    call = json.dumps(action["input"], ensure_ascii=False) if isinstance(action, dict) and "input" in action else ""
    return Texts(said.plan, said.intent, call, response=said.response)


CLAUDE = Family(
    name="claude",
    title="Claude",
    detect=lambda sample: _objects(sample, "action_type", "command", "raw_response"),
    texts=claude_texts,
)
OPENAI = Family(
    name="openai_cua",
    title="OpenAI computer use",
    detect=lambda sample: _objects(sample, "action_space", "call_id"),
    texts=plain_texts,
)
