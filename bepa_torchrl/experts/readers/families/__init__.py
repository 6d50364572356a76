"""The runner families, in the order in which they are tried; the first whose description and scale fit is taken."""

from bepa_torchrl.experts.readers.families.agent_s import S2, S2_5, S3, SYMPHONY
from bepa_torchrl.experts.readers.families.code_blocks import EVOCUA, GENERIC, KIMI, OPENCUA
from bepa_torchrl.experts.readers.families.objects import CLAUDE, OPENAI
from bepa_torchrl.experts.readers.families.tool_calls import OWL, OWL_1_5, QWEN3_VL
from bepa_torchrl.experts.readers.families.ui_tars import UI_TARS
from bepa_torchrl.experts.readers.family import Family, Texts, plain_texts

MOBILE_AGENT = Family(
    name="mobileagent_v3",
    title="mobileagent_v3 (GUI-Owl 1.0)",
    detect=lambda sample: sample.any("step_status"),
    texts=lambda _: Texts(),
)
HUMAN = Family(
    name="human",
    title="human",
    detect=lambda sample: not sample.lines and any("initial_state" in note for note in sample.attempt.notes),
    texts=plain_texts,
)

FAMILIES: tuple[Family, ...] = (
    HUMAN,
    SYMPHONY,
    MOBILE_AGENT,
    CLAUDE,
    OPENAI,
    S3,
    S2_5,
    S2,
    EVOCUA,
    KIMI,
    OWL,
    OWL_1_5,
    QWEN3_VL,
    OPENCUA,
    UI_TARS,
    GENERIC,
)
BY_NAME = {family.name: family for family in FAMILIES}
