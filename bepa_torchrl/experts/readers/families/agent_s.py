"""Agent S2, S2.5 and S3 (gui-agents), and OS-Symphony, which is made of the same parts.

The grounding model's points are not in the texts: a call names its target in words. Texts are in ``response`` (S2 in
OSWorld's newer loop, or a patched runner), flat in the line (S2.5, S3), or nowhere (S2's own runner).
"""

from __future__ import annotations

import json
import re
from typing import Any

from bepa_torchrl.experts.agent_s2_text import sections, sentences
from bepa_torchrl.experts.readers.family import Family, Sample, Texts
from bepa_torchrl.experts.readers.log import Line

_PLANS = ("executor_plan", "plan", "full_plan")


def agent_s_texts(line: Line) -> Texts:
    """The texts of one step."""
    response = line.get("response")
    said: Line = response if isinstance(response, dict) else line
    plan = next((said[key] for key in _PLANS if isinstance(said.get(key), str)), "")
    call = said.get("plan_code") or re.sub(r"^```\w*|```$", "", sections(plan).get("Grounded Action", "")).strip()
    if said.get("code_agent_output"):
        call = "agent.call_code_agent()" if "call_code_agent" not in str(call) else call
    return Texts(
        plan=plan,
        intent=sentences(sections(plan).get("Next Action", ""), 1).rstrip("."),
        call=str(call).strip(),  # S3's ends with a line end
        subtask=_text(said.get("subtask") or said.get("current_subtask")) or "",
        reflection=_text(said.get("reflection")),
    )


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _is_s2(sample: Sample) -> bool:
    """S2's texts, or a log with actions and no texts at all, as its own runner writes."""
    if sample.responses:
        return any(isinstance(said, dict) and set(said) & {*_PLANS, "subtask"} for said in sample.responses)
    return bool(sample.lines) and all(isinstance(line["action"], str) for line in sample.lines)


S3 = Family(
    name="agent_s3",
    title="Agent S3",
    detect=lambda sample: sample.any("plan", "exec_code", "code_agent_output"),
    texts=agent_s_texts,
)
S2_5 = Family(
    name="agent_s2_5",
    title="Agent S2.5",
    detect=lambda sample: sample.any("executor_plan", "full_plan"),
    texts=agent_s_texts,
)
S2 = Family(name="agent_s2", title="Agent S2", detect=_is_s2, texts=agent_s_texts)
SYMPHONY = Family(
    name="os_symphony",
    title="OS-Symphony",
    detect=lambda sample: sample.any("instruction"),
    texts=agent_s_texts,
    picture="before",
)
