"""An engine by HTTP: weights and images cross once, a server that is gone is waited for, faults have names.

The server is real; behind it is the built-in sampler instead of vLLM, so that tokens and log-probs must be equal.
"""

from __future__ import annotations

import io
import pickle
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from built_in_engine import TOKEN, BuiltInEngine, access_to, client_of, served
from cut_relay import CutRelay
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version
from polling import until
from property_tests import examples
from safetensors.torch import save_file
from vllm_engine import make_trainer

from bepa_torchrl.commands.train import main
from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.policies.base import EngineSampler, Learner
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.scale.engine import sampler as sampler_module
from bepa_torchrl.scale.engine.arguments import check_head
from bepa_torchrl.scale.engine.engine_interface import EngineExited, EngineOutput, EngineRow, EngineSpec
from bepa_torchrl.scale.engine.errors import EngineError, WeightSyncError
from bepa_torchrl.scale.engine.http import client as client_module
from bepa_torchrl.scale.engine.http import folders as folders_module
from bepa_torchrl.scale.engine.http import server as server_module
from bepa_torchrl.scale.engine.http.client import EngineClient, EngineRefusedError, EngineUnreachableError
from bepa_torchrl.scale.engine.http.folders import manifest
from bepa_torchrl.scale.engine.http.rows import decode_outputs, decode_rows, encode_outputs, encode_rows
from bepa_torchrl.scale.engine.http.server import EngineServer
from bepa_torchrl.scale.engine.sampler import VLLMSampler
from bepa_torchrl.scale.engine.weight_sync.folder import temporary_folder
from bepa_torchrl.scale.rollouts.rollout_service import RolloutService
from bepa_torchrl.scale.wire import client as wire_client
from bepa_torchrl.scale.wire.access import Access
from bepa_torchrl.scale.wire.content import content_hash, pack, unpack
from bepa_torchrl.scale.wire.errors import BrokenConnectionError, ProtocolError, Refusal
from bepa_torchrl.scale.wire.server import Call
from bepa_torchrl.testing import check_learner, check_sampler, picture
from osworld_gym.types import PromptContext


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is gone is noticed soon."""
    monkeypatch.setattr(client_module, "PATIENCE", 2.0)


def connected(server: EngineServer, trainer: TransformersPolicy | None = None, **options: Any) -> VLLMSampler:
    return VLLMSampler(trainer or make_trainer(), access=access_to(server), start_timeout=20.0, **options)


def rows(policy: VLLMSampler | TransformersPolicy, count: int = 3) -> tuple[list[Prompt], list[tuple[int, ...]]]:
    contexts = [PromptContext(f"open {i}", [picture(70), picture(50 + i)], ["Action: wait()"]) for i in range(count)]
    return [prompt for prompt in policy.renderer.render(contexts) if prompt], [(11, 0, i, 0, 0) for i in range(count)]


def change(trainer: TransformersPolicy) -> None:
    """As an optimiser step."""
    with torch.no_grad():
        for weight in trainer.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.02)
    trainer.encoder.forget()
    trainer.version += 1


def assert_equal(found: Sequence[Response], expected: Sequence[Response]) -> None:
    for mine, other in zip(found, expected, strict=True):
        assert mine.tokens.tolist() == other.tokens.tolist()
        assert mine.text == other.text
        torch.testing.assert_close(mine.log_probs, other.log_probs)


def test_it_keeps_the_contract_of_samplers(tmp_path: Path) -> None:
    with served(tmp_path / "weights") as server:
        policy = connected(server)
        assert isinstance(policy, EngineSampler)
        assert not isinstance(policy, Learner)
        check_sampler(policy)
        check_learner(policy.trainer, policy)
        policy.close()


def test_it_samples_with_the_trainers_weights_of_each_version(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with served(tmp_path / "weights") as server:
        policy = connected(server)
        prompts, keys = rows(policy)
        for _ in range(2):
            assert_equal(policy.sample(prompts, keys), policy.trainer.sample(prompts, keys))
            change(policy.trainer)
            policy.sync()
            assert policy.version == policy.trainer.version
        assert [folder.name.split("-", 1)[1] for folder in (tmp_path / "weights").iterdir()] == ["weights-3"]
        assert_equal(policy.sample(prompts, keys, temperature=0.0), policy.trainer.sample(prompts, keys, temperature=0))
        assert policy.drain_metrics()["engine/restarts"] == 0
        policy.close()
        assert client_of(server).state()["weights"] is None
    assert not (tmp_path / "weights").exists()


@pytest.mark.slow
def test_a_replica_gets_its_weights_also_others_of_the_same_version(tmp_path: Path) -> None:
    """A resumed run may have other weights of a version than the run before it."""
    torch.manual_seed(0)
    with served(tmp_path / "weights") as server:
        trainer, policy = make_trainer(), connected(server, own_weights=True)
        prompts, keys = rows(trainer)
        for version in (1, 2, 2):
            change(trainer)
            policy.load_weights(trainer.named_weights(), version=version)
            assert policy.version == version
            assert_equal(policy.sample(prompts, keys), trainer.sample(prompts, keys))
        with pytest.raises(ValueError, match="weights are missing, such as"):
            policy.load_weights(list(trainer.named_weights())[1:], version=3)
        assert_equal(policy.sample(prompts, keys), trainer.sample(prompts, keys))
        service = RolloutService(policy)
        assert service.sample(prompts, keys, 1.0)[1] == 2
        service.close()
        assert client_of(server).state()["weights"] is None


def test_a_restart_is_not_compared_with_the_probe_of_other_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After weights that are not the trainer's, there is nothing to compare the engine with until the next sync."""
    with served(tmp_path / "weights") as server:
        policy = connected(server)
        policy.sync()
        other = make_trainer()
        change(other)
        policy.load_weights(other.named_weights(), version=1)
        monkeypatch.setattr(sampler_module, "check_same_weights", lambda *_, **__: refuse())
        prompts, keys = rows(policy)
        policy.engine.stop()
        assert_equal(policy.sample(prompts, keys), other.sample(prompts, keys))
        assert policy.restarts == 1
        policy.close()


def test_a_replica_samples_nothing_without_weights(tmp_path: Path) -> None:
    with served(tmp_path / "weights") as server:
        policy = connected(server, own_weights=True)
        prompts, keys = rows(make_trainer())
        with pytest.raises(EngineError, match="no weights were loaded yet"):
            policy.sample(prompts, keys)
        policy.close()


@pytest.mark.slow
def test_an_engine_that_fails_its_check_after_a_restart_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path / "weights") as server:
        policy = connected(server, max_restarts=2)
        policy.sync()
        prompts, keys = rows(policy)
        generate = policy.engine.generate
        calls = iter([EngineExited("by the test")])

        def once(requests: Sequence[EngineRow]) -> list[EngineOutput]:
            for error in calls:
                raise error
            return generate(requests)

        monkeypatch.setattr(policy.engine, "generate", once)
        monkeypatch.setattr(sampler_module, "check_same_weights", lambda *_, **__: refuse())
        with pytest.raises(WeightSyncError, match="by the test"):
            policy.sample(prompts, keys)
        assert not policy.engine.running
        monkeypatch.undo()
        assert_equal(policy.sample(prompts, keys), policy.trainer.sample(prompts, keys))
        assert policy.restarts == 2
        policy.engine.stop()
        with pytest.raises(EngineError, match=r"before its weights were replaced; it was restarted 2 times"):
            policy.load_and_verify()
        policy.close()


def refuse() -> None:
    raise WeightSyncError("by the test")


@pytest.mark.slow
def test_a_policy_that_is_closed_during_a_restart_leaves_no_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path / "weights") as server:
        policy = connected(server)
        policy.sync()
        prompts, keys = rows(policy)
        start, starting, go = policy.engine.start, threading.Event(), threading.Event()

        def slow(model: Path) -> None:
            starting.set()
            assert go.wait(20.0)
            start(model)

        monkeypatch.setattr(policy.engine, "start", slow)
        policy.engine.stop()
        with ThreadPoolExecutor(2) as threads:
            turn = threads.submit(policy.sample, prompts, keys)
            assert starting.wait(20.0)
            closing = threads.submit(policy.close)
            until(lambda: policy._closed, "the policy was not closed")
            go.set()
            with pytest.raises(EngineError, match="the policy is closed"):
                turn.result(20.0)
            closing.result(20.0)
        assert client_of(server).state()["weights"] is None
        with pytest.raises(EngineError, match="the policy is closed"):
            policy.sample(prompts, keys)


def test_the_error_of_an_exit_crosses_processes() -> None:
    output = EngineOutput(torch.ones(1, dtype=torch.int64), torch.zeros(1), 3, 0)
    found = pickle.loads(pickle.dumps(EngineExited("it exited", {2: output})))
    assert str(found) == "it exited"
    assert found.finished[2].prompt_tokens == 3


def test_folders_of_killed_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with temporary_folder() as mine:
        left, unfinished = tmp_path / "bepa-vllm-killed", tmp_path / "bepa-vllm-new"
        for folder in (left, unfinished):
            folder.mkdir()
        (left / ".lock").touch()
        (left / "weights-1").mkdir()
        with temporary_folder() as other:
            assert sorted(tmp_path.iterdir()) == sorted([mine, other, unfinished])
    assert list(tmp_path.iterdir()) == [unfinished]


def test_images_are_sent_once_and_again_when_the_server_has_dropped_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path / "weights") as server:
        policy = connected(server)
        policy.sync()
        prompts, keys = rows(policy)
        sent: list[int] = []

        def counted(fields: dict[str, Any]) -> bytes:
            if "rows" in fields.get("fields", {}):
                sent.append(len(fields["blobs"]))
            return pack(fields)

        monkeypatch.setattr(wire_client, "pack", counted)
        first = policy.sample(prompts, keys)
        assert_equal(policy.sample(prompts, keys), first)
        assert sent == [4, 0]  # one picture is in all three prompts, and the probe's are others
        server.wire.blobs.clear()
        assert_equal(policy.sample(prompts, keys), first)
        assert sent == [4, 0, 0, 4]
        server.wire.blobs.limit = 1
        assert_equal(policy.sample(prompts[:1], keys[:1]), first[:1])
        assert_equal(policy.sample(prompts[:1], keys[:1]), first[:1])
        policy.close()


@pytest.mark.slow
def test_a_server_that_is_started_again_gets_the_weights_again(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with served(tmp_path / "first") as server:
        port = server.address[1]
        policy = connected(server)
        prompts, keys = rows(policy)
        policy.sync()
        change(policy.trainer)
        policy.sync()
        expected = policy.sample(prompts, keys)
    threading.Timer(1.0, lambda: started.append(EngineServer(
        ("127.0.0.1", port), TOKEN, folder=tmp_path / "second", make_engine=BuiltInEngine, version="0.0"
    ))).start()  # fmt: skip
    started: list[EngineServer] = []
    assert_equal(policy.sample(prompts, keys), expected)
    metrics = policy.drain_metrics()
    assert metrics["engine/restarts"] == 1
    assert metrics["engine/turns_retried"] == 3
    started[0].close()
    policy.max_restarts = 1
    with pytest.raises(EngineError, match=r"no answer from http.*; it was restarted 1 times \(max_restarts\)"):
        policy.sample(prompts, keys)


class OldEngine(BuiltInEngine):
    """One of a vLLM that cannot compute logits in float32."""

    def start(self, model: Path) -> None:
        if self.spec.head_dtype:
            check_head(Version("0.30.1"))
        super().start(model)


def test_an_engine_of_a_version_that_cannot_do_what_is_asked_is_named_with_the_fix(tmp_path: Path) -> None:
    """The server stays, and serves a policy that asks for less."""
    with served(tmp_path / "weights", kind=OldEngine) as server:
        trainer = make_trainer()
        trainer.head_dtype = torch.float32
        policy = connected(server, trainer)
        with pytest.raises(EngineRefusedError, match=r"head_dtype=float32 .*requires vLLM 0\.32 .*found 0\.30\.1; fix"):
            policy.sync()
        policy.close()
        plain = connected(server)
        plain.sync()
        prompts, keys = rows(plain, 1)
        assert_equal(plain.sample(prompts, keys), plain.trainer.sample(prompts, keys))
        plain.close()


@pytest.mark.slow
def test_a_sync_waits_for_the_server(tmp_path: Path) -> None:
    with served(tmp_path / "first") as server:
        port = server.address[1]
        policy = connected(server)
        policy.sync()
    policy.engine.start_timeout = 0.1  # type: ignore[attr-defined]
    policy.trainer.version += 1
    with pytest.raises(WeightSyncError, match=r"did not load .*: no answer from http"):
        policy.sync()
    with served(tmp_path / "second", port=port):
        policy.sync()
        prompts, keys = rows(policy, 1)
        assert_equal(policy.sample(prompts, keys), policy.trainer.sample(prompts, keys))


class ExitingEngine(BuiltInEngine):
    """Exits once, after its first row."""

    exits = 1

    def generate(self, rows: Sequence[EngineRow]) -> list[EngineOutput]:
        found = super().generate(rows)
        if len(rows) == 4 and ExitingEngine.exits:
            ExitingEngine.exits -= 1
            raise EngineExited("it was killed", {1: found[1]})
        return found


@pytest.mark.slow
def test_rows_that_an_engine_finished_before_its_exit_are_not_sampled_again(tmp_path: Path) -> None:
    with served(tmp_path / "weights", kind=ExitingEngine) as server:
        policy = connected(server)
        prompts, keys = rows(policy, 4)
        assert_equal(policy.sample(prompts, keys), policy.trainer.sample(prompts, keys))
        metrics = policy.drain_metrics()
        assert (metrics["engine/restarts"], metrics["engine/turns_retried"]) == (1, 3)


class SlowEngine(BuiltInEngine):
    """Takes longer than one request waits."""

    calls = 0
    during: ClassVar[Callable[[], None]] = lambda: None

    def generate(self, rows: Sequence[EngineRow]) -> list[EngineOutput]:
        SlowEngine.calls += 1
        threading.Event().wait(0.3)
        type(self).during()
        threading.Event().wait(0.3)
        return super().generate(rows)


@pytest.mark.slow
def test_a_batch_is_waited_for_by_several_requests_and_sampled_once_whatever_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_POLL", 0.05)
    monkeypatch.setattr(client_module, "_PAUSE", 0.02)
    monkeypatch.setattr(client_module, "PATIENCE", 20.0)
    with served(tmp_path / "weights", kind=SlowEngine) as server:
        relay = CutRelay(server.address)
        trainer = make_trainer()
        policy = VLLMSampler(trainer, access=Access(f"http://127.0.0.1:{relay.address[1]}", TOKEN), start_timeout=20.0)
        policy.sync()
        prompts, keys = rows(policy)
        before = SlowEngine.calls
        monkeypatch.setattr(SlowEngine, "during", relay.cut)
        assert_equal(policy.sample(prompts, keys), policy.trainer.sample(prompts, keys))
        assert relay.cuts
        assert SlowEngine.calls == before + 1
        assert policy.drain_metrics()["engine/restarts"] == 0
        policy.close()
        relay.close()


def test_a_job_that_ends_as_the_wait_for_it_does_is_no_error(tmp_path: Path) -> None:
    class EndsLate(Future[dict[str, Any]]):
        """Its result is there just after a wait for it has given up."""

        def result(self, timeout: float | None = None) -> dict[str, Any]:
            try:
                return super().result(timeout)
            finally:
                if not self.done():
                    self.set_result({"outputs": []})

    with served(tmp_path) as server:
        server._jobs["late"] = EndsLate()
        call = Call({"job": "late", "timeout": 0.0}, {})
        assert server._wait(call) == {"done": False}
        server._jobs["late"].set_result({"outputs": []})
        assert server._wait(call) == {"done": True, "result": {"outputs": []}}


def test_a_silent_server_counts_as_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_client, "SILENCE", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,  # connections are accepted, nothing is ever sent
        pytest.raises(EngineUnreachableError, match=r"no answer from http.*timed out"),
    ):
        EngineClient(Access(f"http://127.0.0.1:{silent.getsockname()[1]}", TOKEN)).state()


@pytest.mark.slow
def test_another_run_takes_the_engine_and_the_first_one_ends_with_the_reason(tmp_path: Path) -> None:
    with served(tmp_path / "weights") as server:
        first, second = connected(server), connected(server)
        prompts, keys = rows(first, 1)
        first.sync()
        second.sync()
        with pytest.raises(EngineRefusedError, match=r"the engine has the weights .* of another run"):
            first.sample(prompts, keys)
        first.close()  # does not end the other one's engine
        assert_equal(second.sample(prompts, keys), second.trainer.sample(prompts, keys))


def test_another_token_is_refused_in_every_request(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with served(tmp_path / "weights") as server:
        client = client_of(server, b"another token 123")
        for attempt in (
            client.state,
            lambda: client.run("load", {}),
            lambda: client.run("generate", {}),
            lambda: client.upload("a", tmp_path / "model"),
            lambda: client._wire.upload(bytes(32), 0, io.BytesIO()),
        ):
            with pytest.raises((EngineRefusedError, ProtocolError), match="another token than the server's"):
                attempt()
        assert not list((tmp_path / "weights").iterdir())
        with pytest.raises(ValueError, match="expected a token"):
            EngineServer(("127.0.0.1", 0), b"", folder=tmp_path, make_engine=BuiltInEngine, version="")


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("folder", {"name": "..", "files": {"x.json": []}}, r"\.\./x\.json is no file of a checkpoint"),
        ("folder", {"name": "a", "files": {"..": []}}, "is no file of a checkpoint"),
        ("folder", {"name": "a", "files": {"model.pt": []}}, r"expected \*\.json, \*\.safetensors"),
        ("folder", {"name": "a", "files": {"b/c.json": []}}, "is no file of a checkpoint"),
        ("folder", {"name": "a", "files": {"c.json": [[3, "x"]]}}, "ValueError"),
        ("folder", {"name": "a", "files": {"c.json": [[bytes(32), -1]]}}, "expected sizes"),
        ("folder", {"name": "a"}, "KeyError: 'files'"),
        ("other", {}, "unknown request POST 'other'"),
        ("load", {}, "KeyError: 'spec'"),
        ("load", {"spec": {"end_token_ids": [], "blocked_ids": [], "lora_targets": []}}, "KeyError|TypeError"),
        ("generate", {"weights": "a", "rows": [{}]}, "expected rows to sample: KeyError: 'tokens'"),
        ("generate", {"weights": "a", "rows": [{"tokens": b"x", "images": []}]}, "expected an array of <i8"),
    ],
)
def test_faulty_requests_are_refused(kind: str, fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    with served(tmp_path / "weights") as server:
        with pytest.raises(EngineRefusedError, match=message):
            client_of(server).run(kind, fields)
        assert not list((tmp_path / "weights").iterdir())


def test_weights_that_did_not_arrive_whole_are_not_loaded(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    with served(tmp_path / "weights") as server:
        policy = connected(server)
        spec = policy.engine.spec  # type: ignore[attr-defined]
        client = client_of(server)
        fields = {name: getattr(spec, name) for name in spec.__slots__}
        request = {"weights": "a", "spec": fields, "start": True, "start_timeout": 1, "stall_timeout": 1}
        for _ in range(2):  # nothing was announced, or not sent
            with pytest.raises(WeightSyncError, match="a was not uploaded whole; send the weights again"):
                client.run("load", request)
            files, places = manifest(model)
            (content,) = client._wire.ask("folder", {"name": "a", "files": files})["wanted"]
        assert places[content].size == 2
        with pytest.raises(WeightSyncError, match="expected a segment of 2 bytes, got more"):
            client._wire.upload(content, 3, io.BytesIO(b"{ }"))
        with pytest.raises(BrokenConnectionError, match="was changed or cut on its way"):
            client._wire.upload(content, 2, io.BytesIO(b"[]"))
        with pytest.raises(WeightSyncError, match="this content is not expected"):
            client._wire.upload(bytes(32), 2, io.BytesIO(b"{}"))
        with pytest.raises(WeightSyncError, match="a was not uploaded whole"):
            client.run("load", request)


def test_a_tensor_that_did_not_change_crosses_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    upload = wire_client.WireClient.upload

    def counted(self: wire_client.WireClient, name: bytes, size: int, data: Any) -> None:
        sent.append(size)
        upload(self, name, size, data)

    monkeypatch.setattr(wire_client.WireClient, "upload", counted)
    folder = tmp_path / "model"
    folder.mkdir()
    first = {"a": torch.zeros(100), "b": torch.ones(50), "tied": torch.ones(50), "empty": torch.zeros(0)}

    def cross(name: str, weights: dict[str, torch.Tensor]) -> list[int]:
        sent.clear()
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text("{}")
        (folder / "chat_template.jinja").write_text("")
        client.upload(name, folder)
        for path in folder.iterdir():
            assert (server.folders.finish(name) / path.name).read_bytes() == path.read_bytes()
        server.folders.keep(name)
        return sorted(sent)

    with served(tmp_path / "weights") as server:
        client = client_of(server)
        found = cross("one", first)
        assert (len(found), {2, 200, 400} - set(found)) == (4, set())  # configuration, b and tied, a; and a header
        assert cross("two", first) == []
        assert cross("two", first) == []
        assert cross("three", first | {"b": torch.zeros(50)}) == [200]
        (header,) = set(cross("four", {"a": first["a"]}))
        assert header < 200
        assert [path.name for path in (tmp_path / "weights").iterdir()] == ["four"]


def folder_of(path: Path, **weights: torch.Tensor) -> Path:
    path.mkdir()
    save_file(weights, path / "model.safetensors")
    return path


def send(client: EngineClient, folder: Path, contents: Sequence[bytes]) -> None:
    places = manifest(folder)[1]
    for content in contents:
        path, offset, size = places[content]
        client._wire.upload(content, size, io.BytesIO(path.read_bytes()[offset : offset + size]))


def test_a_segment_whose_answer_was_lost_is_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_PAUSE", 0.01)
    model = folder_of(tmp_path / "model", a=torch.arange(10.0), b=torch.ones(10))
    with served(tmp_path / "weights") as server:
        lost: set[bytes] = set()

        async def losing(content: bytes, parts: AsyncIterator[bytes]) -> None:
            await server.folders.receive(content, parts)
            if content not in lost:
                lost.add(content)
                raise ConnectionError("the answer is lost")

        monkeypatch.setattr(server.wire, "_receive", losing)
        client_of(server).upload("run-weights-1", model)
        assert len(lost) == 3
        found = server.folders.finish("run-weights-1") / "model.safetensors"
        assert found.read_bytes() == (model / "model.safetensors").read_bytes()


def test_two_runs_upload_the_same_weights_at_once(tmp_path: Path) -> None:
    """Neither's folder is finished before it is whole, and each segment is written to both."""
    model = folder_of(tmp_path / "model", a=torch.full((100,), 1.5), b=torch.full((100,), 2.5))
    files, whole = manifest(model)[0], (model / "model.safetensors").read_bytes()
    with served(tmp_path / "weights") as server:
        client, folders = client_of(server), server.folders
        first = folders.expect("first", files)
        send(client, model, first[:1])
        second = folders.expect("second", files)
        assert (len(first), len(second)) == (3, 3)
        for unfinished in ("first", "second"):
            with pytest.raises(Refusal, match=f"{unfinished} was not uploaded whole"):
                folders.finish(unfinished)
        send(client, model, first[1:])
        assert (folders.finish("first") / "model.safetensors").read_bytes() == whole
        with pytest.raises(Refusal, match="second was not uploaded whole"):
            folders.finish("second")
        folders.keep("first")  # the engine has loaded it; the other upload goes on
        send(client, model, second)
        assert (folders.finish("second") / "model.safetensors").read_bytes() == whole


def test_an_upload_that_was_given_up_is_neither_finished_nor_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (folder_of(tmp_path / name, a=torch.full((10,), value)) for name, value in (("o", 1.0), ("n", 2.0)))
    with served(tmp_path / "weights") as server:
        client, folders = client_of(server), server.folders
        client.upload("run", old)
        folders.finish("run")
        for _ in range(2):  # other content of the same name, which never comes
            assert len(folders.expect("run", manifest(new)[0])) == 1
        with pytest.raises(Refusal, match="run was not uploaded whole"):
            folders.finish("run")
        client.upload("run", old)
        found = folders.finish("run") / "model.safetensors"
        assert found.read_bytes() == (old / "model.safetensors").read_bytes()
        client.upload("run", new)
        folders.finish("run")
        assert found.read_bytes() == (new / "model.safetensors").read_bytes()
        folders.expect("other", manifest(old)[0])
        monkeypatch.setattr(folders_module, "GIVEN_UP", 0.0)
        folders.keep("run")
        assert [path.name for path in folders.root.iterdir()] == ["run"]


class SlowStart(BuiltInEngine):
    """Waits while it is made, or while it starts, until it may go on."""

    place: ClassVar[str]
    reached: ClassVar[threading.Event]
    go: ClassVar[threading.Event]
    states: ClassVar[list[str]]

    def __init__(self, spec: EngineSpec, start_timeout: float, stall_timeout: float) -> None:
        super().__init__(spec, start_timeout, stall_timeout)
        self.wait("make")

    def wait(self, place: str) -> None:
        if place == self.place:
            self.reached.set()
            assert self.go.wait(60.0)

    def start(self, model: Path) -> None:
        self.wait("start")
        self.model = model.name
        self.states.append("started")

    def stop(self) -> None:
        self.states.append("stopped")


@pytest.mark.parametrize(("place", "waits"), [("make", True), ("start", True), ("start", False)])
def test_an_engine_that_starts_while_the_server_is_closed_is_ended(
    place: str, waits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it takes longer than the close waits."""
    monkeypatch.setattr(server_module, "CLOSE_SECONDS", 60.0 if waits else 0.1)
    for name, value in {"place": place, "reached": threading.Event(), "go": threading.Event(), "states": []}.items():
        monkeypatch.setattr(SlowStart, name, value, raising=False)
    model, spec = folder_of(tmp_path / "model", a=torch.ones(1)), EngineSpec("float32", 10, 1, 1, 1.0, 0, (1,), ())
    request = {"weights": "run", "spec": asdict(spec), "start": True, "start_timeout": 1.0, "stall_timeout": 1.0}
    with served(tmp_path / "weights", kind=SlowStart) as server, ThreadPoolExecutor(2) as threads:
        client = client_of(server)
        client.upload("run", model)
        load = threads.submit(client.run, "load", request)
        assert SlowStart.reached.wait(60.0)
        close = threads.submit(server.close)
        if waits:
            until(lambda: server._worker._shutdown, "it was not closed")
            SlowStart.go.set()
        close.result(60.0)
        assert not server.folders.root.exists()
        SlowStart.go.set()
        (job,) = server._jobs.values()
        job.exception(60.0)
        assert SlowStart.states[-1:] != ["started"]
        assert isinstance(load.exception(60.0), EngineUnreachableError)


def test_another_version_and_no_server_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path / "weights") as server:
        with monkeypatch.context() as patch:
            patch.setattr(wire_client, "VERSION", "4/0.0.1")
            older = client_of(server)
        with pytest.raises(EngineRefusedError, match=r"has schema 4 and version 0\.0\.1; install the same version"):
            older.state()
    with pytest.raises(EngineUnreachableError, match="no answer from http"):
        client_of(server).state()
    with (
        served(tmp_path / "weights") as server,
        pytest.raises(ValueError, match="takes no further arguments of vLLM, got seed"),
    ):
        connected(server, arguments={"seed": 1})


def test_a_run_checks_the_server_before_its_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(tmp_path / "weights") as server:
        run = ["compare=[]", "policy.rollout=vllm", "train.old_log_probs=all", f"runs={tmp_path / 'runs'}"]
        run.append(f"policy.engine.url='{server.url}'")
        monkeypatch.delenv("BEPA_ENGINE_TOKEN", raising=False)
        assert main(run, prog="bepa train") == 2
        assert "expected a token in a file, or in BEPA_ENGINE_TOKEN" in capsys.readouterr().err
        monkeypatch.setenv("BEPA_ENGINE_TOKEN", "fedcba9876543210")
        assert main(run, prog="bepa train") == 3
        assert "another token than the server's" in capsys.readouterr().err
    assert main(run, prog="bepa train") == 3
    assert "no answer from http" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@examples(30)
@given(st.lists(st.tuples(st.lists(st.integers(0, 2**31 - 1)), st.lists(st.sampled_from([b"", b"a", b"bc"])))))
def test_rows_and_outputs_survive_the_wire(drawn: list[tuple[list[int], list[bytes]]]) -> None:
    given_rows = [
        EngineRow(Prompt(torch.tensor(ids, dtype=torch.int64), tuple(images)), (1, number), 0.5, 7)
        for number, (ids, images) in enumerate(drawn)
    ]
    encoded, images = encode_rows(given_rows)
    assert images == {content_hash(png): png for png in images.values()}
    found = decode_rows(unpack(pack({"rows": encoded}))["rows"], images)
    assert [row.prompt.tokens.tolist() for row in found] == [ids for ids, _ in drawn]
    assert [list(row.prompt.images) for row in found] == [images for _, images in drawn]
    assert [(row.key, row.temperature, row.max_tokens) for row in found] == [
        ((1, n), 0.5, 7) for n in range(len(drawn))
    ]
    outputs = {
        number: EngineOutput(row.prompt.tokens, torch.rand(len(row.prompt.tokens)) * -9, 3, 1)
        for number, row in enumerate(given_rows)
    }
    back = decode_outputs(unpack(pack({"outputs": encode_outputs(outputs)}))["outputs"])
    for number, output in outputs.items():
        assert torch.equal(back[number].tokens, output.tokens)
        assert torch.equal(back[number].log_probs, output.log_probs)
