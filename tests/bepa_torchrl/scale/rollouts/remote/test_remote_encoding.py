"""What crosses between clusters comes out as it went in; everything else is refused."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from property_tests import examples

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.data.step_rows import Turn, episode_rows, row_list, stack_rows
from bepa_torchrl.rollout.episodes import EpisodeJob, EpisodeResult
from bepa_torchrl.rollout.group_collector import RolloutSeeds
from bepa_torchrl.scale.rollouts.channel.errors import ProtocolError
from bepa_torchrl.scale.rollouts.channel.messages import Message, pack, unpack
from bepa_torchrl.scale.rollouts.channel.plans import decode_lease, decode_plan, encode_lease, encode_plan
from bepa_torchrl.scale.rollouts.channel.results import decode_result, encode_result
from bepa_torchrl.scale.rollouts.channel.weights import PublishedWeights, WeightsTag, decode_weights, encode_weights
from bepa_torchrl.scale.rollouts.env_worker import RolloutPlan
from bepa_torchrl.scale.rollouts.evaluations import EvaluationPlan
from bepa_torchrl.scale.rollouts.task_queue import Lease
from bepa_torchrl.testing import lamp_task
from osworld_gym.errors import FailureReason
from osworld_gym.types import StopReason, Verdict

PNG = b"\x89PNG\r\n\x1a\n"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
some = examples(25)
TASKS = {f"lamp-{n}": lamp_task(n) for n in range(3)}


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    tokens = draw(st.lists(st.integers(0, 2**40), max_size=5))
    log_probs = draw(st.lists(st.floats(-100, 0, width=32), min_size=len(tokens), max_size=len(tokens)))
    images = tuple(PNG + draw(st.binary(max_size=4)) for _ in range(draw(st.integers(0, 3))))
    prompt = Prompt(torch.tensor(draw(st.lists(st.integers(0, 2**40), max_size=5)), dtype=torch.int64), images)
    response = Response(draw(st.text()), torch.tensor(tokens, dtype=torch.int64), torch.tensor(log_probs).float())
    return Turn(PNG + draw(st.binary(max_size=4)), prompt, response)


@st.composite
def results(draw: st.DrawFn) -> EpisodeResult:
    job = EpisodeJob(
        TASKS[draw(st.sampled_from(sorted(TASKS)))],
        tuple(draw(st.lists(st.integers(-(2**60), 2**60), max_size=5))),
        draw(st.integers(0, 2**31)),
        draw(st.integers(0, 10**6)),
        draw(st.integers(0, 100)),
        draw(st.none() | st.text()),
    )
    made, rows = draw(st.lists(turns(), max_size=3)), None
    if made:
        rows = episode_rows(
            made,
            task_id=job.task.id,
            instruction=draw(st.text()),
            group_id=job.group_id,
            slot=job.slot,
            source=K.Source.on_policy,
            policy_version=draw(st.integers(0, 10**6)),
            reward=draw(st.sampled_from([0.0, 1.0])),
            stop=StopReason.finished,
            plan_free=draw(st.booleans()),
        )
    verdict = draw(st.none() | st.builds(Verdict, st.floats(0, 1), st.text(), st.booleans()))
    failure = draw(st.none() | st.sampled_from(FailureReason))
    retried = draw(st.lists(st.sampled_from(FailureReason), max_size=5))
    return EpisodeResult(job, rows, draw(st.sampled_from(StopReason)), verdict, failure, tuple(retried))


def same_value(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and torch.equal(one.nan_to_num(7), other.nan_to_num(7))
        )
    return bool(one == other)


@some
@given(results())
def test_a_result_comes_out_as_it_went_in(result: EpisodeResult) -> None:
    fields, blobs = encode_result(result)
    message = unpack(b"".join(pack(Message("complete", 3, {"episode": fields}, blobs))))
    found = decode_result(message.fields["episode"], message.blobs, TASKS)
    assert dataclasses.replace(found, rows=None) == dataclasses.replace(result, rows=None)
    if result.rows is None:
        assert found.rows is None
        return
    assert found.rows is not None
    ours, theirs = row_list(result.rows), row_list(found.rows)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        keys = set(one.keys(include_nested=True))
        assert keys == set(other.keys(include_nested=True))
        assert all(same_value(one[key], other[key]) for key in keys if key not in ("tokens", "log_probs"))


def result_with_rows() -> EpisodeResult:
    shots = [PNG + b"%d" % number for number in range(3)]
    made = [
        Turn(
            shots[step],
            Prompt(torch.arange(4), tuple(shots[: step + 1])),
            Response("r", torch.arange(2), torch.full((2,), -0.5)),
        )
        for step in range(3)
    ]
    rows = episode_rows(
        made,
        task_id="lamp-0",
        instruction="i",
        group_id=1,
        slot=0,
        source=K.Source.on_policy,
        policy_version=2,
        reward=1.0,
        stop=StopReason.finished,
        plan_free=True,
    )
    return EpisodeResult(EpisodeJob(TASKS["lamp-0"], (0, 1), 5, 1), rows, StopReason.finished, Verdict(1.0))


def test_an_image_crosses_once() -> None:
    fields, blobs = encode_result(result_with_rows())
    assert sum(blob.startswith(PNG) for blob in blobs) == 3  # 9 in the rows
    found = decode_result(fields, blobs, TASKS)
    assert found.rows is not None
    first, *_, last = row_list(found.rows)
    assert first[K.SCREENSHOT] is last[K.IMAGES][0]


def test_a_row_with_an_entry_that_the_schema_does_not_know_is_not_sent() -> None:
    result = result_with_rows()
    assert result.rows is not None
    rows = row_list(result.rows)
    rows[0].set(K.ADVANTAGE, torch.zeros(1, 1))
    with pytest.raises(ValueError, match="these differ: advantage"):
        encode_result(dataclasses.replace(result, rows=stack_rows(rows)))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda f, _: f.pop("stop"), "KeyError: 'stop'"),
        (lambda f, _: f.update(stop="bored"), "'bored' is not a valid StopReason"),
        (lambda f, _: f["job"].update(task="other"), "KeyError: 'other'"),
        (lambda f, _: f["job"].update(slot=1.5), "expected an integer, got '1.5'"),
        (lambda f, _: f["job"].update(slot=True), "expected an integer"),
        (lambda f, _: f["rows"][0].update(advantage=1), "these differ: advantage"),
        (lambda f, _: f["rows"][0].pop("step"), "these differ: step"),
        (lambda f, _: f["rows"][0].update(response=["a"]), "expected text"),
        (lambda f, _: f["rows"][0].update(screenshot_png=99), "expected the number of one of"),
        (lambda f, _: f["rows"][0].update(screenshot_png=-1), "expected the number of one of"),
        (lambda f, _: f["rows"][0].update({"tokens.prompt": f["rows"][0]["screenshot_png"]}), "ValueError"),
        (lambda f, _: f["rows"][0].update({"tokens.response": f["rows"][0]["tokens.prompt"]}), "a log-prob per token"),
        (lambda f, b: b.__setitem__(f["rows"][0]["screenshot_png"], b"GIF89a"), "expected a PNG image"),
        (lambda f, _: f.update(rows=[[]]), "AttributeError"),
        (lambda f, _: f.update(verdict=[]), "IndexError"),
    ],
)
def test_a_damaged_result_is_refused(change: Any, problem: str) -> None:
    fields, blobs = encode_result(result_with_rows())
    change(fields, blobs)
    with pytest.raises(ProtocolError, match=problem):
        decode_result(fields, blobs, TASKS)


@some
@given(
    st.text(), st.integers(0, 2**60), st.dictionaries(st.text(), JSON, max_size=3), st.lists(st.binary(), max_size=4)
)
def test_a_message_comes_out_as_it_went_in(kind: str, number: int, fields: dict[str, Any], blobs: list[bytes]) -> None:
    assert unpack(b"".join(pack(Message(kind, number, fields, blobs)))) == Message(kind, number, fields, tuple(blobs))


@some
@given(st.binary(max_size=200), st.data())
def test_no_bytes_but_a_message_are_read_as_one(noise: bytes, data: st.DataObject) -> None:
    """Random bytes, and a message cut short at any point, or with bytes added."""
    whole = b"".join(pack(Message("lease", 1, {"worker": "w"}, [b"abc", b""])))
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    for damaged in (noise, cut, whole + b"x"):
        with pytest.raises(ProtocolError):
            unpack(damaged)


def header(**changes: Any) -> bytes:
    content = {"kind": "k", "number": 1, "fields": {}, "blobs": []} | changes
    text = json.dumps(content).encode()
    return len(text).to_bytes(4, "big") + text


@pytest.mark.parametrize(
    "body",
    [
        header(number="1"),
        header(number=True),
        header(kind=None),
        header(fields=[]),
        header(blobs=[-1, 1]),
        header(blobs=[0.0]),
        header(more=1),
        b"\0\0\0\2[]",
    ],
)
def test_a_header_of_another_form_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="expected"):
        unpack(body)


def test_what_is_not_finite_is_not_sent() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        pack(Message("k", 1, {"a": math.nan}))


@some
@given(st.builds(Lease, st.text(), st.integers(0), st.integers(0), JSON, st.integers(1), st.booleans()))
def test_a_lease_comes_out_as_it_went_in(lease: Lease) -> None:
    assert decode_lease(json.loads(json.dumps(encode_lease(lease)))) == lease


def test_what_is_not_a_lease_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"expected a lease: .*surprise"):
        decode_lease(encode_lease(Lease("0-1", 0, 0, [0, 0], 1)) | {"surprise": 1})


def test_a_plan_comes_out_as_it_went_in() -> None:
    """With every field, so that a new one must be added to the encoding."""
    evaluation = EvaluationPlan((lamp_task(0), lamp_task(2)), 3, 12345, 0.0)
    plan = RolloutPlan((lamp_task(0), lamp_task(1, infected=True)), RolloutSeeds(3, "slot"), 0.7, 2, evaluation)
    for each in (plan, dataclasses.replace(plan, evaluation=None)):
        assert decode_plan(json.loads(json.dumps(encode_plan(each)))) == each
    encoded = encode_plan(plan)
    for part, kind in (
        (encoded, RolloutPlan),
        (encoded["seeds"], RolloutSeeds),
        (encoded["evaluation"], EvaluationPlan),
    ):
        assert part.keys() == {field.name for field in dataclasses.fields(kind)}
    for damaged in ({}, encode_plan(plan) | {"tasks": [{"id": "x"}]}, encode_plan(plan) | {"seeds": []}):
        with pytest.raises(ProtocolError, match="expected the plan of a run"):
            decode_plan(damaged)


@pytest.mark.parametrize("part_bytes", [1, 100, 10_000])
def test_weights_come_out_as_they_went_in(part_bytes: int) -> None:
    embedding = torch.randn(5, 7)
    weights = {
        "embedding": embedding,
        "head": embedding,  # tied
        "half": torch.randn(3).bfloat16(),
        "transposed": torch.randn(2, 3).T,
        "steps": torch.tensor(3),
        "trained": torch.nn.Parameter(torch.randn(4)),
    }
    parts = encode_weights(weights.items(), part_bytes=part_bytes)
    found = decode_weights(parts)
    assert list(found) == list(weights) or part_bytes > 1  # a part's order is that of safetensors
    assert found.keys() == weights.keys()
    assert all(same_value(weights[name].detach(), found[name]) for name in weights)
    assert (len(parts) == 1) == (part_bytes == 10_000)
    with torch.no_grad():
        embedding += 1  # the trainer goes on
    assert not torch.equal(decode_weights(parts)["head"], embedding)


def test_weights_that_are_none_or_twice_are_refused() -> None:
    (part,) = encode_weights({"a": torch.zeros(1)}.items())
    assert encode_weights([]) == []
    assert decode_weights([]) == {}
    with pytest.raises(ProtocolError, match="the weight 'a' comes twice"):
        decode_weights([part, part])
    for damaged in (part[:-1], b"", b"\x80\x04N.", part[:4] + b"\xff" * 8 + part[12:]):
        with pytest.raises(ProtocolError, match="as safetensors"):
            decode_weights([damaged])


def test_published_weights_are_waited_for() -> None:
    published = PublishedWeights("run")
    assert published.other_than(None, 0.0) is None
    published.publish([("a", torch.zeros(1))], 3)
    newest = published.other_than(None, 0.0)
    assert newest is not None
    assert newest.tag == ("run", 3)
    assert published.other_than(newest.tag, 0.0) is None
    assert published.other_than(WeightsTag("before the restart", 3), 0.0) is newest
