"""What crosses between clusters comes out as it went in; everything else is refused."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Collection
from contextlib import suppress
from typing import Any

import msgpack
import numpy as np
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
from bepa_torchrl.scale.rollouts.env_worker import RolloutPlan
from bepa_torchrl.scale.rollouts.evaluations import EvaluationPlan
from bepa_torchrl.scale.rollouts.remote.plans import decode_lease, decode_plan, encode_lease, encode_plan
from bepa_torchrl.scale.rollouts.remote.results import decode_result, encode_result
from bepa_torchrl.scale.rollouts.remote.rollout_side import follow
from bepa_torchrl.scale.rollouts.remote.weights import (
    PublishedWeights,
    Weights,
    WeightsTag,
    decode_weights,
    encode_weights,
)
from bepa_torchrl.scale.rollouts.task_queue import Lease
from bepa_torchrl.scale.wire.content import content_hash, pack, pack_array, unpack, unpack_array
from bepa_torchrl.scale.wire.errors import ProtocolError, RunEndedError
from bepa_torchrl.testing import lamp_task
from osworld_gym.errors import FailureReason
from osworld_gym.types import StopReason, Verdict

PNG = b"\x89PNG\r\n\x1a\n"
NUMBER = st.integers(0, 2**63 - 1)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | FINITE | st.text(),
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
    return EpisodeResult(
        job,
        rows,
        draw(st.sampled_from(StopReason)),
        verdict,
        failure,
        tuple(retried),
        replayed=draw(st.integers(0, 9)),
        mismatch=draw(st.booleans()),
    )


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
    fields, images = encode_result(result)
    found = decode_result(unpack(pack({"episode": fields}))["episode"], images, TASKS)
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
    return EpisodeResult(EpisodeJob(TASKS["lamp-0"], (0, 1), 5, 1), rows, StopReason.finished, Verdict(1.0, judge="j"))


def test_an_image_crosses_once() -> None:
    fields, images = encode_result(result_with_rows())
    assert len(images) == 3  # 9 in the rows
    assert images == {content_hash(png): png for png in images.values()}
    found = decode_result(fields, images, TASKS)
    assert found.rows is not None
    first, *_, last = row_list(found.rows)
    assert first[K.SCREENSHOT] is last[K.IMAGES][0]


def test_the_beginning_of_a_prompt_that_is_that_of_the_row_before_crosses_once() -> None:
    result, noise = result_with_rows(), torch.randint(0, 150_000, (3, 4000))
    assert result.rows is not None
    rows = row_list(result.rows)
    for step, row in enumerate(rows):
        row.set(K.PROMPT_TOKENS, noise[: step + 1].flatten())
    fields, images = encode_result(dataclasses.replace(result, rows=stack_rows(rows)))
    assert [row["prompt_shared"] for row in fields["rows"]] == [0, 4000, 8000]
    first, *later = [len(row["tokens.prompt"]) for row in fields["rows"]]
    assert all(length < 1.1 * first for length in later)
    found = decode_result(fields, images, TASKS).rows
    assert found is not None
    assert all(
        torch.equal(one[K.PROMPT_TOKENS], other[K.PROMPT_TOKENS])
        for one, other in zip(row_list(found), rows, strict=True)
    )


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
        (lambda f, _: f["rows"][0].update(screenshot_png=99), "expected the hash of one of 3 images, got 99"),
        (lambda f, _: f["rows"][0].update(screenshot_png=b"x" * 32), "expected the hash of one of"),
        (lambda f, _: f["rows"][0].update({"tokens.prompt": f["rows"][0]["screenshot_png"]}), "an array of <i8"),
        (lambda f, _: f["rows"][0].update({"tokens.prompt": [1, 2]}), "expected an array as bytes, got list"),
        (lambda f, _: f["rows"][0].update({"tokens.prompt": zlib.compress(b"odd")}), "expected an array of <i8"),
        (lambda f, _: f["rows"][1].update(prompt_shared=5), "expected 0 to 4 token ids of the prompt before, got 5"),
        (lambda f, _: f["rows"][1].update(prompt_shared=-1), "expected 0 to 4 token ids of the prompt before, got -1"),
        (lambda f, _: f["rows"][0].update(prompt_shared=True), "expected an integer"),
        (lambda f, _: f["rows"][0].update({"tokens.response": f["rows"][0]["tokens.prompt"]}), "a log-prob per token"),
        (lambda f, b: b.__setitem__(f["rows"][0]["screenshot_png"], b"GIF89a"), "expected a PNG image"),
        (lambda f, _: f.update(rows=[[]]), "AttributeError"),
        (lambda f, _: f.update(verdict=[]), "IndexError"),
    ],
)
def test_a_damaged_result_is_refused(change: Any, problem: str) -> None:
    fields, images = encode_result(result_with_rows())
    change(fields, images)
    with pytest.raises(ProtocolError, match=problem):
        decode_result(fields, images, TASKS)


@some
@given(st.dictionaries(st.text(), JSON | st.binary(), max_size=3))
def test_a_body_comes_out_as_it_went_in(fields: dict[str, Any]) -> None:
    assert unpack(pack(fields)) == fields


@some
@given(st.binary(max_size=200), st.data())
def test_no_bytes_but_a_body_are_read_as_one(noise: bytes, data: st.DataObject) -> None:
    """A body cut short at any point, or with bytes added; random bytes are a body by chance only."""
    whole = pack({"worker": "w", "blob": b"abc", "list": [1, 2.5, None, {}]})
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    for damaged in (cut, whole + b"x"):
        with pytest.raises(ProtocolError):
            unpack(damaged)
    with suppress(ProtocolError):
        assert isinstance(unpack(noise), dict)


@pytest.mark.parametrize(
    "body",
    [
        msgpack.packb([1]),
        msgpack.packb(3),
        msgpack.packb({1: 2}),
        msgpack.packb({"a": msgpack.ExtType(7, b"x")}),
        b"\x81\xa1a\xdd\xff\xff\xff\xff",  # a list that says that it has 2^32 - 1 entries
        b"\x91" * 100_000,
        b"\x80\x04N.",  # a pickle
    ],
)
def test_a_body_of_another_form_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="expected a"):
        unpack(body)


def test_what_has_no_form_is_not_sent() -> None:
    for value in (object(), {1, 2}, torch.ones(1), 2**64, {"a": {3: object()}}):
        with pytest.raises((TypeError, ValueError)):
            pack({"a": value})


def test_arrays_come_out_as_they_went_in_and_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.repeat(np.arange(4, dtype=np.int64), 25_000)
    packed = pack_array(values, "<i8")
    assert len(packed) < values.nbytes / 100  # a prompt is mostly one token, once per image patch
    assert np.array_equal(unpack_array(packed, "<i8"), values)
    with pytest.raises(TypeError, match="Cannot cast"):
        pack_array(values, "<i4")
    monkeypatch.setattr("bepa_torchrl.scale.wire.content._LARGEST_ARRAY", 1000)
    for damaged in (packed, packed[:-1], packed + b"x", b"", b"abc"):
        with pytest.raises(ProtocolError, match="expected an array of <i8"):
            unpack_array(damaged, "<i8")


@some
@given(st.builds(Lease, st.text(), NUMBER, NUMBER, JSON, NUMBER, st.booleans()))
def test_a_lease_comes_out_as_it_went_in(lease: Lease) -> None:
    assert decode_lease(unpack(pack(encode_lease(lease)))) == lease


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


def sent(weights: dict[str, torch.Tensor], version: int = 0) -> Weights:
    return encode_weights(WeightsTag("run", version), weights.items())


def test_weights_come_out_as_they_went_in() -> None:
    embedding = torch.randn(5, 7)
    weights = {
        "embedding": embedding,
        "head": embedding,  # tied
        "half": torch.randn(3).bfloat16(),
        "transposed": torch.randn(2, 3).T,
        "steps": torch.tensor(3),
        "trained": torch.nn.Parameter(torch.randn(4)),
    }
    crossed = sent(weights)
    tensors = decode_weights(crossed, {})
    assert list(crossed.names) == list(weights)
    assert len(crossed.tensors) == 5
    assert all(same_value(weights[name].detach(), tensors[key]) for name, key in crossed.names.items())
    with torch.no_grad():
        embedding += 1  # the trainer goes on
    assert not torch.equal(decode_weights(crossed, {})[crossed.names["head"]], embedding)


def test_weights_that_are_missing_or_damaged_are_refused() -> None:
    weights = sent({"a": torch.zeros(1)})
    ((key, file),) = weights.tensors.items()
    assert decode_weights(sent({}), {}) == {}
    with pytest.raises(ProtocolError, match="the tensor of 'a', which is neither sent nor held"):
        decode_weights(dataclasses.replace(weights, tensors={}), {})
    for damaged in (file[:-1], b"", b"\x80\x04N.", file[:4] + b"\xff" * 8 + file[12:]):
        with pytest.raises(ProtocolError, match="'a' as safetensors"):
            decode_weights(dataclasses.replace(weights, tensors={key: damaged}), {})


def test_tensors_that_did_not_change_cross_once() -> None:
    """As those below LoRA adapters. What is not needed any more is not held."""
    first = {"a": torch.zeros(3), "b": torch.ones(2), "c": torch.ones(4)}
    versions = [sent(first, 0), sent(first | {"b": torch.zeros(2)}, 1), sent({"a": first["a"]}, 2), sent(first, 3)]
    asked: list[set[bytes]] = []
    loaded: list[dict[str, torch.Tensor]] = []

    class Trainer:
        def next_weights(self, tag: WeightsTag | None, held: Collection[bytes], _: float) -> Weights:
            asked.append(set(held))
            if not versions:
                raise RunEndedError("the end")
            whole = versions.pop(0)
            assert tag is None or tag.version == whole.tag.version - 1
            return dataclasses.replace(whole, tensors={k: v for k, v in whole.tensors.items() if k not in held})

    notes: list[str] = []
    follow(Trainer(), lambda weights, _: loaded.append(dict(weights)), check=lambda: None, note=notes.append)
    assert [{name: tensor.tolist() for name, tensor in each.items()} for each in loaded] == [
        {"a": [0.0] * 3, "b": [1.0] * 2, "c": [1.0] * 4},
        {"a": [0.0] * 3, "b": [0.0] * 2, "c": [1.0] * 4},
        {"a": [0.0] * 3},
        {"a": [0.0] * 3, "b": [1.0] * 2, "c": [1.0] * 4},
    ]
    assert [len(held) for held in asked] == [0, 3, 3, 1, 3]
    assert notes[-1] == "the end"


def test_published_weights_are_waited_for() -> None:
    published = PublishedWeights("run")
    assert published.other_than(None, 0.0) is None
    published.publish([("a", torch.zeros(1))], 3)
    newest = published.other_than(None, 0.0)
    assert newest is not None
    assert newest.tag == ("run", 3)
    assert published.other_than(newest.tag, 0.0) is None
    assert published.other_than(WeightsTag("before the restart", 3), 0.0) is newest
