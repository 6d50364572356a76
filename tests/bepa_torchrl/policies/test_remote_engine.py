"""An engine by HTTP: weights and images cross once, a server that is gone is waited for, faults have names.

The server is real; behind it is the built-in sampler instead of vLLM, so that tokens and log-probs must be equal.
"""

from __future__ import annotations

import http.client
import json
import pickle
import socket
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from built_in_engine import TOKEN, BuiltInEngine, served, url_of
from hypothesis import given
from hypothesis import strategies as st
from polling import until
from property_tests import examples
from vllm_engine import make_trainer

from bepa_torchrl.commands.train import main
from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.policies.base import EngineSampler, Learner
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.scale.engine import sampler as sampler_module
from bepa_torchrl.scale.engine.engine_interface import EngineExited, EngineOutput, EngineRow
from bepa_torchrl.scale.engine.errors import EngineError, WeightSyncError
from bepa_torchrl.scale.engine.http_engine import client as client_module
from bepa_torchrl.scale.engine.http_engine import remote as remote_module
from bepa_torchrl.scale.engine.http_engine import server as server_module
from bepa_torchrl.scale.engine.http_engine.client import EngineClient, EngineRefusedError, EngineUnreachableError
from bepa_torchrl.scale.engine.http_engine.server import EngineServer
from bepa_torchrl.scale.engine.http_engine.wire import (
    build_rows,
    decode_outputs,
    decode_rows,
    encode_outputs,
    encode_rows,
)
from bepa_torchrl.scale.engine.sampler import VLLMSampler
from bepa_torchrl.scale.engine.weight_sync.folder import temporary_folder
from bepa_torchrl.scale.rollouts.rollout_service import RolloutService
from bepa_torchrl.testing import check_learner, check_sampler, picture
from osworld_gym.types import PromptContext


def connected(server: EngineServer, trainer: TransformersPolicy | None = None, **options: Any) -> VLLMSampler:
    return VLLMSampler(trainer or make_trainer(), url=url_of(server), token=TOKEN, start_timeout=20.0, **options)


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
        assert EngineClient(url_of(server), TOKEN).state()["weights"] is None
    assert not (tmp_path / "weights").exists()


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
        assert EngineClient(url_of(server), TOKEN).state()["weights"] is None


def test_a_replica_samples_nothing_without_weights(tmp_path: Path) -> None:
    with served(tmp_path / "weights") as server:
        policy = connected(server, own_weights=True)
        prompts, keys = rows(make_trainer())
        with pytest.raises(EngineError, match="no weights were loaded yet"):
            policy.sample(prompts, keys)
        policy.close()


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
        assert EngineClient(url_of(server), TOKEN).state()["weights"] is None
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
        encode = remote_module.encode_rows

        def counted(*args: Any) -> bytes:
            body = encode(*args)
            sent.append(len(decode_rows(body)[3]))
            return body

        monkeypatch.setattr(remote_module, "encode_rows", counted)
        first = policy.sample(prompts, keys)
        assert_equal(policy.sample(prompts, keys), first)
        assert sent == [4, 0]  # one picture is in all three prompts
        server._images.clear()
        assert_equal(policy.sample(prompts, keys), first)
        assert sent == [4, 0, 0, 4]
        server._image_bytes = 1
        assert_equal(policy.sample(prompts[:1], keys[:1]), first[:1])
        assert_equal(policy.sample(prompts[:1], keys[:1]), first[:1])
        policy.close()


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


def test_rows_that_an_engine_finished_before_its_exit_are_not_sampled_again(tmp_path: Path) -> None:
    with served(tmp_path / "weights", kind=ExitingEngine) as server:
        policy = connected(server)
        prompts, keys = rows(policy, 4)
        assert_equal(policy.sample(prompts, keys), policy.trainer.sample(prompts, keys))
        metrics = policy.drain_metrics()
        assert (metrics["engine/restarts"], metrics["engine/turns_retried"]) == (1, 3)


class SlowEngine(BuiltInEngine):
    """Takes longer than the time between two bytes of an answer."""

    def generate(self, rows: Sequence[EngineRow]) -> list[EngineOutput]:
        threading.Event().wait(0.5)
        return super().generate(rows)


def test_an_engine_that_works_sends_bytes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_BEAT", 0.05)
    with served(tmp_path / "weights", kind=SlowEngine) as server:
        policy = connected(server)
        policy.sync()
        prompts, keys = rows(policy, 1)
        body = encode_rows(policy.engine._weights, [EngineRow(prompts[0], keys[0], 1.0, 16)], set())  # type: ignore[attr-defined]
        connection = http.client.HTTPConnection("127.0.0.1", server.address[1], timeout=60)
        connection.request("POST", "/generate", body, {"Authorization": f"Bearer {TOKEN.decode()}"})
        answer = connection.getresponse().read()
        connection.close()
        assert answer.startswith(b" ")
        (output,) = decode_outputs(json.loads(answer)["outputs"]).values()
        (expected,) = policy.trainer.sample(prompts, keys)
        assert output.tokens.tolist() == expected.tokens.tolist()


def test_a_silent_server_counts_as_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "SILENCE", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,  # connections are accepted, nothing is ever sent
        pytest.raises(EngineUnreachableError, match=r"no answer from http.*timed out"),
    ):
        EngineClient(f"http://127.0.0.1:{silent.getsockname()[1]}", TOKEN).state()


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
    with served(tmp_path / "weights") as server:
        client = EngineClient(url_of(server), b"another token 123")
        for method, path in (("GET", "/state"), ("PUT", "/weights/a/x.json"), ("POST", "/load"), ("POST", "/generate")):
            with pytest.raises(EngineRefusedError, match="another token than the server's"):
                client.ask(method, path, None if method == "GET" else b"{}")
        assert not list((tmp_path / "weights").iterdir())
        with pytest.raises(ValueError, match="expected a token"):
            EngineServer(("127.0.0.1", 0), b"", folder=tmp_path, make_engine=BuiltInEngine, version="")


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        ("PUT", "/weights/../x.json", b"", r"\.\./x\.json is no file of a checkpoint"),
        ("PUT", "/weights/a/..", b"", "is no file of a checkpoint"),
        ("PUT", "/weights/a/model.pt", b"", r"expected \*\.json, \*\.safetensors"),
        ("PUT", "/weights/a/b/c.json", b"", "unknown request PUT"),
        ("GET", "/other", None, "unknown request GET /other"),
        ("POST", "/load", b"[1]", "expected a JSON object"),
        ("POST", "/load", b"{", "no JSON"),
        ("POST", "/load", b"{}", "no request of schema 2: 'spec'"),
        ("POST", "/generate", b"x", "no rows of schema 2"),
    ],
)
def test_faulty_requests_are_refused(method: str, path: str, body: bytes | None, message: str, tmp_path: Path) -> None:
    with served(tmp_path / "weights") as server:
        with pytest.raises(EngineRefusedError, match=message):
            EngineClient(url_of(server), TOKEN).ask(method, path, body)
        assert not list((tmp_path / "weights").iterdir())


def test_weights_that_did_not_arrive_whole_are_not_loaded(tmp_path: Path) -> None:
    with served(tmp_path / "weights") as server:
        policy = connected(server)
        spec = policy.engine.spec  # type: ignore[attr-defined]
        client = EngineClient(url_of(server), TOKEN)
        client.ask("PUT", "/weights/a/config.json", b"{}")
        fields = {name: getattr(spec, name) for name in spec.__slots__}
        request = {"weights": "a", "files": {"config.json": 3}, "spec": fields, "start": True}
        body = json.dumps(request | {"start_timeout": 1, "stall_timeout": 1}).encode()
        with pytest.raises(WeightSyncError, match=r"config\.json was not uploaded whole"):
            client.ask("POST", "/load", body)


def test_an_older_server_and_no_server_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path / "weights") as server:
        monkeypatch.setattr(server_module, "SCHEMA", 0)
        with pytest.raises(EngineRefusedError, match="has schema 0, expected 2; install the same version"):
            EngineClient(url_of(server), TOKEN).state()
    with pytest.raises(EngineUnreachableError, match="no answer from http"):
        EngineClient(url_of(server), TOKEN).state()
    for url in ("10.0.0.1:7400", "ftp://x:1", "http://:80", "http://x:1/path"):
        with pytest.raises(ValueError, match=r"policy\.engine\.url: expected http://HOST:PORT"):
            EngineClient(url, TOKEN)
    with served(tmp_path / "weights") as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.address[1], timeout=10)
        connection.putrequest("POST", "/load")
        connection.putheader("Authorization", f"Bearer {TOKEN.decode()}")
        connection.endheaders()
        assert "expected a Content-Length" in connection.getresponse().read().decode()
        connection.close()
    with pytest.raises(ValueError, match="takes no further arguments of vLLM, got seed"):
        connected(server, arguments={"seed": 1})


def test_a_run_checks_the_server_before_its_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(tmp_path / "weights") as server:
        run = ["policy.rollout=vllm", "train.old_log_probs=all", f"runs={tmp_path / 'runs'}"]
        run.append(f"policy.engine.url='{url_of(server)}'")
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
    name, listed, tokens, images = decode_rows(encode_rows("w", given_rows, set()))
    found = build_rows(listed, tokens, images)
    assert name == "w"
    assert [row.prompt.tokens.tolist() for row in found] == [ids for ids, _ in drawn]
    assert [list(row.prompt.images) for row in found] == [images for _, images in drawn]
    assert [(row.key, row.temperature, row.max_tokens) for row in found] == [
        ((1, n), 0.5, 7) for n in range(len(drawn))
    ]
    outputs = {
        number: EngineOutput(row.prompt.tokens, torch.rand(len(row.prompt.tokens)) * -9, 3, 1)
        for number, row in enumerate(given_rows)
    }
    back = decode_outputs(json.loads(json.dumps(encode_outputs(outputs))))
    for number, output in outputs.items():
        assert torch.equal(back[number].tokens, output.tokens)
        assert torch.equal(back[number].log_probs, output.log_probs)  # JSON's numbers are exact
