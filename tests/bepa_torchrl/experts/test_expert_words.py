"""φ, conversion, and the expert's raw text, each on a trace with a known result."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from expert_fixtures import executor_plan, frame, sound_trace, step

from bepa_torchrl.experts import (
    ExpertTrace,
    TraceError,
    convert,
    convert_trace,
    plan_from_trace,
    plan_with_model,
    raw_pairs,
    worker_messages,
)
from bepa_torchrl.experts.agent_s2_text import says_it_failed, sections, sentences
from bepa_torchrl.experts.plan import parse_plan, plan_messages
from osworld_gym.action_text import ACTION_TEXTS
from osworld_gym.types import Action
from osworld_gym.uitars import ImageScaling, parse
from osworld_gym.uitars.pyautogui import to_pyautogui


def test_plan_keeps_effective_steps_only() -> None:
    """Of eight steps: one failed, one pop-up, one wait, one finish are out; the note and its "done" have intents."""
    assert plan_from_trace(sound_trace()) == (
        "1. Click settings\n2. Note the volume\n3. Enter the volume\n4. Type the volume"
    )


def test_plan_of_the_converted_trace_reads_the_thoughts() -> None:
    """Memory and the subtask's "done" are not responses; each line is the last sentence of a thought."""
    assert plan_from_trace(sound_trace(), source="converted") == "1. Click settings now\n2. Type the volume now"


def test_a_repeat_counts_when_the_screen_changed() -> None:
    click = step("Press next", "pyautogui.click(1, 2)", (Action("click", start=(1, 2)),))
    scroll = step("Scroll down", "pyautogui.scroll(-5)", (Action("scroll", direction="down"),))
    frames = tuple(frame(i) for i in (0, 1, 1, 2, 3))
    trace = ExpertTrace("t", "i", "e", (click, click, click, scroll, scroll), frames, True, frame(4))
    # press 1 changed the screen, press 2 did not, press 3 did; of the scrolls only the last is kept
    assert plan_from_trace(trace) == "1. Press next\n2. Press next\n3. Scroll down"


def test_no_effective_step_is_an_error() -> None:
    wait = step("Wait", "import time; time.sleep(2)", (Action("wait"),))
    with pytest.raises(TraceError, match="no effective step"):
        plan_from_trace(ExpertTrace("t", "i", "e", (wait,), (frame(0),), True))
    with pytest.raises(ValueError, match="raw, converted"):
        plan_from_trace(sound_trace(), source="cooked")


def test_plan_by_a_model_uses_the_papers_prompt_and_takes_the_numbered_lines() -> None:
    asked = []

    def complete(prompt: str) -> str:
        asked.append(prompt)
        return 'Task: Set it\n\n1. Click "settings"\n 2) Type 7\nGood luck!'

    assert plan_with_model(sound_trace(), complete) == '1. Click "settings"\n2. Type 7'
    assert plan_with_model(sound_trace(), complete, source="converted").startswith("1. Click")
    raw, converted = asked
    assert raw.startswith("You are an expert at converting technical GUI automation traces")
    assert "mathsisfun.com/games/2048.html" in raw
    assert "Task: Set the volume to 7" in raw
    assert "agent.save_to_knowledge" in raw
    assert "Action: click(start_box='<|box_start|>(10,20)<|box_end|>')" in converted
    assert "agent.save_to_knowledge" not in converted
    with pytest.raises(TraceError, match="no numbered line"):
        plan_with_model(sound_trace(), lambda _: "Just do it.")


def test_the_model_is_told_what_each_step_does_also_of_a_log_without_texts() -> None:
    """Agent S2's own runner and OpenAI's write no texts; OpenCUA's thought does not have its section Action."""
    silent = replace(step("Click at (72, 40)", "pyautogui.click(72, 40)"), plan="", call="")
    thinking = replace(silent, plan="The sound is on.", intent="Click the mute button")
    trace = ExpertTrace("t", "Mute", "agent_s2", (silent, thinking, sound_trace().steps[0]), (frame(0),) * 3, True)
    (message,) = plan_messages(trace)
    _, one, two, three = re.split(r"Step \d \[.*\]\n", message["content"])
    assert one.startswith("Click at (72, 40)\n")
    assert two.startswith("The sound is on.\nClick the mute button\n")
    assert three.startswith("Click settings now.\nagent.click(")  # said once


@pytest.mark.parametrize("opening", ["<think>\n", ""])
def test_a_plan_has_nothing_of_the_models_thinking(opening: str) -> None:
    """A server without a parser of its model's thinking leaves it in the answer."""
    thinking = f"{opening}The trace:\n1. Click help, which did not work\n2. Close it\n"
    assert parse_plan(f"{thinking}</think>\n\nTask: mute\n1. Press mute") == "1. Press mute"
    with pytest.raises(ValueError, match="no numbered line"):
        parse_plan("<think>\n1. Click help, which")  # cut off


def test_an_action_that_the_prompts_do_not_list_makes_a_trace_not_faithful() -> None:
    """A move after a click is performed and kept; UI-TARS's prompts have no word for it, OpenCUA's have pyautogui's."""
    code = "pyautogui.click(1, 2); pyautogui.moveTo(300, 400)"
    actions = (Action("click", start=(1, 2)), Action("hover", start=(300, 400)))
    trace = ExpertTrace("t", "i", "e", (step("Look", code, actions),), (frame(0),), True, frame(1))
    converted = convert_trace(trace)
    assert "hover(" in converted.pairs[0][1]
    assert converted.inexact == ((0, "not_prompted"),)
    assert not converted.faithful


def test_wheel_clicks_are_exact_where_the_text_has_them() -> None:
    """UI-TARS's text scrolls by five clicks; Qwen3-VL's has a number, a middle click, and drags from the pointer."""
    turned = [
        (Action("scroll", start=(1, 2), direction="down", clicks=7),),
        (Action("scroll", direction="up", clicks=15),),
        (Action("scroll", direction="up", clicks=1000),),
        (Action("middle_single", start=(1, 2)),),
        (Action("drag", end=(3, 4)),),
    ]
    steps = tuple(step("Look", to_pyautogui(actions), actions) for actions in turned)
    trace = ExpertTrace("t", "i", "e", steps, (frame(0),) * 5, True, frame(1))
    found = convert_trace(trace)
    calls = [response.count("scroll(") for _, response in found.pairs]
    assert calls == [1, 3, 10, 0]  # the last is finished()
    assert found.inexact == ((0, "not_exact"), (2, "not_exact"))
    assert found.dropped == ((3, "not_convertible"), (4, "not_convertible"))
    other = convert_trace(trace, action_text="qwen3vl")
    assert other.faithful
    assert [ACTION_TEXTS["qwen3vl"].parse(response).actions for _, response in other.pairs[:-1]] == turned


def test_conversion_of_every_step() -> None:
    converted = convert_trace(sound_trace())
    actions = [parse(response).actions for _, response in converted.pairs]
    click = (Action("click", start=(10.0, 20.0)),)
    assert actions == [
        click,
        click,
        (Action("hotkey", key="esc"),),
        (Action("wait"),),
        (Action("type", content="7\n"),),
        (Action("finished"),),
    ]
    assert converted.steps == (0, 1, 2, 3, 6, 7)
    assert converted.dropped == ((4, "framework"), (5, "subtask_done"))
    assert converted.reasons == {"framework": 1, "subtask_done": 1}
    assert not converted.faithful
    assert [png for png, _ in converted.pairs] == [frame(i) for i in (0, 1, 2, 3, 6, 7)]
    assert converted.pairs[0][1] == (
        "Thought: The window shows Click settings. Click settings now.\n"
        "Action: click(start_box='<|box_start|>(10,20)<|box_end|>')"
    )


def test_conversion_ends_with_finished_on_the_last_screenshot() -> None:
    trace = sound_trace()
    short = replace(trace, steps=trace.steps[:3], screenshots=trace.screenshots[:3])
    pairs = convert(short)
    assert pairs[-1] == (frame(8), "Thought: The task is done.\nAction: finished()")
    assert len(pairs) == 4
    with pytest.raises(TraceError, match="no screenshot after its last step"):
        convert(replace(short, final_screenshot=None))


def test_conversion_uses_the_models_pixels() -> None:
    """56×28 at factor 28 and at least 4 cells: root of 4/2 enlarges to 3×2 cells = 84×56; (10,20) → (15,40)."""
    scaling = ImageScaling(factor=28, min_pixels=4 * 28 * 28)
    assert scaling.model_size((56, 28)) == (84, 56)
    (action,) = parse(convert(sound_trace(), scaling)[0][1]).actions
    assert action.start == (15.0, 40.0)


def test_thoughts_by_a_model_keep_the_experts_action() -> None:
    asked = []

    def complete(prompt: str) -> str:
        asked.append(prompt)
        return "Thought: I see it.\nAction: click(start_box='(999,999)')"

    converted = convert_trace(sound_trace(), complete=complete)
    assert converted.pairs[0][1] == "Thought: I see it.\nAction: click(start_box='<|box_start|>(10,20)<|box_end|>')"
    assert "1. Box tokens: you must include" in asked[0]
    assert "pyautogui_action: pyautogui.click(10, 20, clicks=1, button='left')" in asked[0]
    assert "reflection: null" in asked[0]
    silent = convert_trace(sound_trace(), complete=lambda _: "")
    assert silent.pairs == convert_trace(sound_trace()).pairs


def test_steps_without_an_action_in_the_table_are_counted() -> None:
    odd = step("Cells", "import uno; uno.set()", call="agent.click('x', 1)")
    middle = step("Pick", "pyautogui.click(1, 2, button='middle')")
    cells = step("Cells", "DONE", call="agent.set_cell_values({'A1': 1}, 'calc', 's')")
    trace = sound_trace()
    mixed = replace(trace, steps=(odd, middle, cells, *trace.steps[3:]))
    assert convert_trace(mixed).reasons == {
        "bad_source": 1,
        "not_convertible": 1,
        "framework": 2,
        "subtask_done": 1,
    }


def test_raw_text_is_the_experts() -> None:
    trace = sound_trace()
    png, text = raw_pairs(trace)[0]
    assert png == trace.screenshots[0]
    assert text == trace.steps[0].plan
    bare = replace(trace.steps[0], plan="Look, then click.")
    (_, text), *_ = raw_pairs(replace(trace, steps=(bare, *trace.steps[1:])))
    assert text == "Look, then click.\n\n(Grounded Action)\n```python\nagent.click('it', 1, 'left')\n```"


def test_worker_call_of_a_first_and_a_later_step() -> None:
    trace = sound_trace()
    system, user = worker_messages(trace, 0)
    words = system["content"][0]["text"]
    assert "executing the current subtask:\n`Mute the sound`\nof the larger goal:\n`Set the volume to 7`." in words
    assert "The subtasks [''] have already been done." in words
    assert "The future subtasks ['Set the volume'] will be done later." in words
    assert "You are working in linux." in words
    assert "def switch_applications(self, app_name)" in words
    assert user["content"][0]["text"] == (
        "Remember only complete the subtask: Mute the sound.\n"
        "You can use this extra information for the current subtask:\nMute the sound.\nText Buffer = []."
    )
    assert user["content"][1] == {"type": "image", "image": frame(0)}
    later = worker_messages(replace(trace, steps=(trace.steps[6],) * 8, instruction="{platform}?"), 1)
    assert "`{platform}?`" in later[0]["content"][0]["text"]
    assert later[1]["content"][0]["text"] == (
        "You may use this reflection on the previous action and trajectory:\nAll goes well.\nText Buffer = []."
    )


def test_sections_sentences_and_verdicts() -> None:
    plan = executor_plan("A. B.", "Click it. Then wait.", "agent.wait(1)", "The click did not work.")
    assert sections(plan)["Next Action"] == "Click it. Then wait."
    assert sections("just words") == {"Next Action": "just words"}
    assert sentences("Click it.\nThen  wait. End", 2) == "Click it. Then wait."
    assert sentences("点击。等待。", 1) == "点击。"
    assert says_it_failed(plan)
    assert not says_it_failed(executor_plan("A", "B", "c()", "No previous action was taken, nothing to verify."))
    assert not says_it_failed(executor_plan("It failed.", "B", "c()", "The previous action was successful."))
