"""bepa eval --policy-model: a hosted model scores what its checkpoint scores; refusals and failures are no results."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import atif
import grounding_files as made
import pytest
from chat_server import ChatServer, Reply, chat_server

from bepa_torchrl.cli import main
from bepa_torchrl.data.prompt import Prompt
from bepa_torchrl.endpoint import ChatModel, Endpoint
from bepa_torchrl.experiment.evaluated_policy import scaling_of
from bepa_torchrl.policies.endpoint import EndpointRenderer, EndpointSampler
from bepa_torchrl.policies.transformers.policy import TransformersPolicy, load_policy
from bepa_torchrl.storage.json_lines import read_lines
from osworld_gym.types import PromptContext
from osworld_gym.uitars.coords import ImageScaling

SIM = ["eval", "suite=sim", "env.train_limit=8", "--json"]
TINY = "16,4096,36864"  # the shipped checkpoint's preprocessor_config.json
DONE = "Thought: done\nAction: finished(content='')"


@pytest.fixture(scope="module")
def tiny() -> TransformersPolicy:
    return load_policy("tiny", preset="compact", history="last_k", history_images=1)


def served(policy: TransformersPolicy) -> Callable[[dict[str, Any]], Reply]:
    """A server of the policy's weights: it applies the chat template, resizes images and samples greedily."""
    lock = threading.Lock()

    def part(each: dict[str, Any]) -> dict[str, Any]:
        if each["type"] == "text":
            return each
        return {"type": "image", "image": base64.b64decode(each["image_url"]["url"].partition("base64,")[2])}

    def answer(request: dict[str, Any]) -> Reply:
        messages = [{**each, "content": [*map(part, each["content"])]} for each in request["messages"]]
        with lock:
            prompts: list[Prompt] = policy.renderer.processor.render([messages])
            return Reply(policy.sample(prompts, [(0,)], temperature=0.0)[0].text)

    return answer


def played(server: ChatServer, out: Path, *more: str, points: str = TINY) -> int:
    where = ["--policy-model", "tiny", "--policy-url", server.url, "--policy-points", points, "--policy-retries", "0"]
    return main([*SIM, *where, "--out", str(out), *more])


def outcomes(folder: Path) -> dict[str, tuple[str, float | None, int]]:
    lines = map(json.loads, (folder / "results.jsonl").read_text().splitlines())
    return {line["task"]: (line["result"], line["score"], line["steps"]) for line in lines}


def actions(line: dict[str, Any]) -> tuple[str, str]:
    """An exported episode's task, and its actions."""
    return line["task_id"], json.dumps([step["actions"] for step in line["steps"]])


def lost_of(capsys: pytest.CaptureFixture[str]) -> list[int]:
    """Episodes without a result, per pass of the printed card."""
    return [each["no_result"] for each in json.loads(capsys.readouterr().out)["passes"]]


@pytest.mark.slow
def test_the_same_outcomes_as_its_checkpoint(
    tiny: TransformersPolicy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prompts, images, coordinates and past responses reach the endpoint as they reach the weights."""
    assert main([*SIM, "policy.checkpoint=tiny", "--out", str(tmp_path / "here")]) == 0
    here = json.loads(capsys.readouterr().out)
    with chat_server(served(tiny)) as server:
        assert played(server, tmp_path / "there") == 0
    there = json.loads(capsys.readouterr().out)
    assert outcomes(tmp_path / "there") == outcomes(tmp_path / "here")
    assert 0 < there["score"] == here["score"] < 1
    assert (there["policy"], there["endpoint"], there["scaling"]["factor"]) == ("tiny", server.url, 16)
    for kind in ("atif", "jsonl", "datasets"):  # the points of both, in pixels of the screen
        for name in ("here", "there"):
            out = str(tmp_path / f"{name}-{kind}")
            assert main(["export", str(tmp_path / name), "--format", kind, "--out", out]) == 0
    first, second = (read_lines(tmp_path / f"{name}-jsonl/episodes.jsonl") for name in ("here", "there"))
    assert sorted(map(actions, first)) == sorted(map(actions, second))
    assert any(action["start"] for line in second for step in line["steps"] for action in step["actions"])
    trials = [json.loads(path.read_text()) for path in (tmp_path / "there-atif").rglob("trajectory.json")]
    assert len([atif.Trajectory.model_validate(trial) for trial in trials]) == 8
    request = server.requests[0]
    assert (request["temperature"], request["max_tokens"]) == (0.0, 96)


def test_a_refused_request_is_no_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first request of the second pass is too long for the endpoint; the next call plays that episode again."""
    refused = 9

    def script(_: dict[str, Any]) -> Reply:
        long = len(server.requests) == refused
        return Reply("maximum context length is 10 tokens", status=400) if long else Reply(DONE)

    more = ["env.desktops=1", "--passes", "2", "--temperature", "0"]
    with chat_server(script) as server:
        assert played(server, tmp_path / "out", *more) == 0
        lines = [json.loads(line) for line in (tmp_path / "out/results.jsonl").read_text().splitlines()]
        (lost,) = [line for line in lines if line["result"] == "no_result"]
        assert (lost["attempt"], lost["score"]) == (1, None)
        assert "refused: tiny at" in lost["reason"]
        assert "maximum context length" in lost["reason"]
        assert lost_of(capsys) == [0, 1]
        refused, before = 0, len(server.requests)
        assert played(server, tmp_path / "out", *more) == 0
        assert len(server.requests) == before + 1
        assert lost_of(capsys) == [0, 0]


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (Reply("<html>", raw=True), "expected a chat completion"),
        (Reply("out of memory", status=500), "status 500: "),
        (Reply("no such model", status=404), "status 404: "),
        (Reply("at most 0 images", status=400), "at most 0 images"),
    ],
)
def test_an_endpoint_that_fails_ends_the_evaluation(
    reply: Reply, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with chat_server(lambda _: reply) as server:
        assert played(server, tmp_path / "out") != 0
    error = capsys.readouterr().err
    assert says in error
    assert "continue with: bepa eval suite=sim" in error


def test_what_was_played_is_kept_when_the_endpoint_goes_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = 3

    def script(_: dict[str, Any]) -> Reply:
        return Reply(DONE) if len(server.requests) <= answers else Reply("gone", status=503)

    with chat_server(script) as server:
        assert played(server, tmp_path / "out", "env.desktops=1") != 0
        assert len((tmp_path / "out/episodes.jsonl").read_text().splitlines()) == 3
        answers = 99
        assert played(server, tmp_path / "out", "env.desktops=1") == 0
        assert len(server.requests) == 9
    assert json.loads(capsys.readouterr().out)["denominators"]["ran"]["tasks"] == 8


def test_a_grounding_suite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Thousandths of each image: (0.2, 0.4) of a picture is inside the first box, whatever the picture's size."""
    made.screenspot_v2(tmp_path / "data")
    answer = "Action: click(start_box='(200,400)')"
    with chat_server(lambda _: Reply(answer)) as server:
        where = ["--policy-model", "m", "--policy-url", server.url, "--policy-points", "thousandths"]
        data = ["--data", str(tmp_path / "data"), "--out", str(tmp_path / "out"), "--json"]
        assert main(["eval", "suite=screenspot_v2", "policy.preset=grounding", *where, *data]) == 0
    card = json.loads(capsys.readouterr().out)
    assert card["policy"] == "m"
    assert card["scaling"]["relative"] == 1000
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--policy-url", "http://127.0.0.1:1/v1"], "--policy-url is read with --policy-model NAME only"),
        (["--policy-points", "pixels"], "--policy-points is read with --policy-model NAME only"),
        (["--policy-model", "m", "policy.checkpoint=tiny"], "leave one of them out"),
        (["--policy-model", "m", "--policy-url", "http://h/v1", "--policy-points", "28"], "FACTOR,MIN,MAX"),
        (["--policy-model", "m", "--oracle"], "--oracle plays no policy"),
        (["--policy-model", "m", "--from", "folder"], "--from plays no policy"),
    ],
)
def test_options_that_contradict_each_other(
    more: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SIM, "--out", str(tmp_path / "out"), *more]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_units_of_points() -> None:
    assert scaling_of("uitars", None) == scaling_of("opencua", "pixels") == ImageScaling()
    assert scaling_of("qwen3vl", None).to_screen((500, 250), (1920, 1080)) == (960, 270)
    assert scaling_of("qwen3vl", "28,784,1003520") == ImageScaling(28, 784, 1_003_520)


def test_a_sampler_that_would_repeat_itself_is_refused(tmp_path: Path) -> None:
    renderer = EndpointRenderer("uitars", preset="paper", history="evict_block", history_images=5)
    endpoint = Endpoint("m", "http://127.0.0.1:1/v1", temperature=1.0)
    with pytest.raises(ValueError, match="without a cache"):
        EndpointSampler(ChatModel(endpoint, tmp_path), renderer)
    with pytest.raises(ValueError, match="expected temperature=1, got 0"):
        EndpointSampler(ChatModel(endpoint), renderer).sample([], [], temperature=0.0)


def test_messages_have_the_screenshots_that_the_history_keeps() -> None:
    context = PromptContext("Mute.", (b"one", b"two", b"three"), ("Action: wait()", "Action: wait()"))
    renderer = EndpointRenderer("uitars", preset="official", history="last_k", history_images=2)
    (prompt,) = renderer.render([context])
    assert prompt is not None
    assert prompt.images == (b"two", b"three")
    messages = prompt.messages  # type: ignore[attr-defined]
    kinds = [(each["role"], [part["type"] for part in each["content"]]) for each in messages]
    assert kinds[-4:] == [
        ("assistant", ["text"]),
        ("user", ["image_url"]),
        ("assistant", ["text"]),
        ("user", ["image_url"]),
    ]
    assert (
        messages[-1]["content"][0]["image_url"]["url"] == "data:image/png;base64," + base64.b64encode(b"three").decode()
    )


@pytest.mark.parametrize(
    ("response", "past"),
    [
        ("Action: click(start_box='(72,40)')", "Action: click(start_box='<|box_start|>(72,40)<|box_end|>')"),
        (
            "Thought: I drag it.\nAction: drag(start_box=\"(1, 2)\", end_box='(3,4)')\n\nwait()",
            'Thought: I drag it.\nAction: drag(start_box="<|box_start|>(1, 2)<|box_end|>", '
            "end_box='<|box_start|>(3,4)<|box_end|>')\n\nwait()",
        ),
        *[
            (same, same)
            for same in (
                "Action: click(start_box='<|box_start|>(72,40)<|box_end|>')",
                "Thought: start_box='(1,2)'\nAction: type(content='start_box=\\'(1,2)\\'')",
                "start_box='(1,2)'",
            )
        ],
    ],
)
def test_past_responses_get_their_box_tokens_back(response: str, past: str) -> None:
    """A server strips special tokens; OSWorld's adapter adds them to the history (``add_box_token``)."""
    renderer = EndpointRenderer("uitars", preset="official", history="last_k", history_images=2)
    (prompt,) = renderer.render([PromptContext("Mute.", (b"one", b"two"), (response,))])
    texts = [part["text"] for each in prompt.messages for part in each["content"] if part["type"] == "text"]  # type: ignore[union-attr]
    assert texts[-1] == past


def test_other_action_texts_have_no_box_tokens() -> None:
    response = "## Action:\nClick start_box='(1,2)'\n\n## Code:\n```python\npyautogui.click(1, 2)\n```"
    renderer = EndpointRenderer("opencua", preset="action_history", history="last_k", history_images=2)
    (prompt,) = renderer.render([PromptContext("Mute.", (b"one", b"two"), (response,))])
    assert "<|box_start|>" not in str(prompt.messages)  # type: ignore[union-attr]
