"""How weights reach an engine: which way is possible, what is sent, and what happens when it fails."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from packaging.version import Version
from vllm_engine import change, make_trainer

from bepa_torchrl.policies.transformers.lora import Lora
from bepa_torchrl.scale.engine.errors import EngineError, WeightSyncError
from bepa_torchrl.scale.engine.weight_sync.choice import Ends, TransferSetting, choose_transfer, gpus_of
from bepa_torchrl.scale.engine.weight_sync.engine_weights import EngineWeights
from bepa_torchrl.scale.engine.weight_sync.folder import fingerprint
from bepa_torchrl.scale.engine.weight_sync.stream import WeightStream

NEW = Version("0.32.0")


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        (Ends("0", ("0",), vllm=NEW), "ipc"),
        (Ends("0", ("1",), vllm=NEW), "nccl"),
        (Ends("0", ("1", "2"), vllm=NEW), "nccl"),
        (Ends("0", ("0", "1"), vllm=NEW), "folder"),  # neither: NCCL takes one process per GPU
        (Ends("GPU-a", ("GPU-a",), vllm=NEW), "ipc"),
        (Ends("0", ("GPU-a",), vllm=NEW), "folder"),  # perhaps the same GPU
        (Ends(None, (), vllm=NEW), "folder"),
        (Ends("0", ("1",), vllm=Version("0.31.1")), "folder"),
        (Ends("0", ("1",), here=False, vllm=NEW), "folder"),
        (Ends("0", ("0",), whole=False, vllm=NEW), "folder"),
    ],
)
def test_the_way_is_chosen_by_where_both_ends_are(ends: Ends, expected: str) -> None:
    assert choose_transfer("auto", ends) == expected
    assert choose_transfer("folder", ends) == "folder"
    if expected != "folder":
        setting: TransferSetting = "ipc" if expected == "ipc" else "nccl"
        assert choose_transfer(setting, ends) == expected


@pytest.mark.parametrize(
    ("setting", "ends", "reason"),
    [
        ("ipc", Ends("0", ("1",), vllm=NEW), "the trainer is on GPU 0, the engine on 1"),
        ("ipc", Ends("0", ("0", "1"), vllm=NEW), "the trainer is on GPU 0, the engine on 0, 1"),
        ("nccl", Ends("0", ("0",), vllm=NEW), "trainer and engine share GPU 0"),
        ("nccl", Ends(None, (), vllm=NEW), "computes on the CPU"),
        ("ipc", Ends("0", ("0",), vllm=Version("0.31")), "requires vLLM 0.32 or later, found 0.31"),
        ("nccl", Ends("0", ("1",), here=False), "by HTTP"),
        ("nccl", Ends("0", ("1",), whole=False, vllm=NEW), "adapters are sent alone"),
        ("nccl", Ends("0", ("GPU-a",), vllm=NEW), "in the same form"),
    ],
)
def test_an_impossible_way_is_refused_with_the_reason(setting: TransferSetting, ends: Ends, reason: str) -> None:
    with pytest.raises(ValueError, match=rf"policy\.engine\.weights={setting}: .*{reason}.*weights=auto"):
        choose_transfer(setting, ends)


@pytest.mark.parametrize(
    ("index", "devices", "arguments", "visible", "expected"),
    [
        (0, None, {}, None, ("0", ("0",))),
        (1, None, {}, None, ("1", ("0",))),
        (0, "1", {}, None, ("0", ("1",))),
        (0, "1, 2", {"tensor_parallel_size": 2}, None, ("0", ("1", "2"))),
        (1, None, {}, "4,6", ("6", ("4",))),
        (0, "6,7,5", {"tensor_parallel_size": 2}, "4,6", ("4", ("6", "7"))),
        (0, None, {"data_parallel_size": 2, "tensor_parallel_size": 2}, None, ("0", ("0", "1", "2", "3"))),
    ],
)
def test_the_gpus_of_both_ends(
    index: int, devices: str | None, arguments: dict[str, int], visible: str | None, expected: tuple[str, tuple[str]]
) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert gpus_of(index, devices, arguments, environ) == expected


@pytest.mark.parametrize("lora", [None, Lora(rank=4, alpha=8, targets=("q_proj", "down_proj"), adapter=None)])
@pytest.mark.parametrize("tied", [True, False])
def test_what_is_sent_is_as_described_and_as_in_a_folder(tied: bool, lora: Lora | None, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    trainer = make_trainer(tied=tied, lora=lora)
    change(trainer, "lora_" if lora else "")
    weights = EngineWeights(Receiver(), trainer, tmp_path)
    stream = WeightStream(trainer.named_weights, weights.expected)
    sent = dict(stream)
    assert [(name, weight.dtype, tuple(weight.shape)) for name, weight in sent.items()] == stream.described
    weights.use(weights.complete(trainer.named_weights()), trainer)
    written = load_file(tmp_path / "weights-1" / "model.safetensors")
    assert written.keys() == sent.keys()
    assert "lm_head.weight" in sent
    assert all(torch.equal(written[name], weight) for name, weight in sent.items())
    assert stream.fingerprint == weights.fingerprint


def test_weights_are_cast_to_the_engines_dtype() -> None:
    stream = WeightStream(
        lambda: [("w", torch.tensor([[1.0, 2.0]]).T), ("n", torch.tensor([3]))],
        {"w": (torch.bfloat16, (2, 1)), "n": (torch.int64, (1,))},
    )
    (_, weight), (_, number) = stream
    assert (weight.dtype, weight.is_contiguous(), number.dtype) == (torch.bfloat16, True, torch.int64)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([("a", torch.zeros(2))], "expected the weight b of shape .*, got none"),
        ([("b", torch.zeros(3)), ("a", torch.zeros(2))], "expected the weight a of shape .*, got b"),
        ([("a", torch.zeros(3)), ("b", torch.zeros(3))], r"weight a of shape \(2,\), got a of shape \(3,\)"),
        ([("a", torch.zeros(2)), ("b", torch.zeros(3)), ("c", torch.zeros(1))], "others, too, such as c"),
    ],
)
def test_other_weights_than_those_described_are_refused(given: list[tuple[str, torch.Tensor]], message: str) -> None:
    stream = WeightStream(lambda: given, {"a": (torch.float32, (2,)), "b": (torch.float32, (3,))})
    with pytest.raises(ValueError, match=message):
        list(stream)
    assert not stream.fingerprint


class Receiver:
    """An engine that records what it is given; ``failing``: what :meth:`receive` raises, after it was stopped."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.running = False
        self.weights = ""
        self.failing: WeightSyncError | None = None

    concurrent = True

    def start(self, model: Path) -> None:
        self.calls.append(f"start {model.name}")
        self.running = True

    def stop(self) -> None:
        self.running = False

    def reload(self, model: Path) -> None:
        self.calls.append(f"reload {model.name}")

    def use_adapter(self, folder: Path) -> None:
        raise AssertionError(folder)

    def generate(self, rows: object) -> list[object]:  # type: ignore[override]
        raise AssertionError(rows)

    def receive(self, stream: WeightStream) -> None:
        assert self.running
        self.calls.append("receive")
        if self.failing is not None:
            self.stop()
            raise self.failing
        self.weights = fingerprint(dict(stream), torch.float32)


def test_an_engine_starts_with_a_folder_gets_weights_without_and_both_again_after_an_exit(tmp_path: Path) -> None:
    trainer, engine = make_trainer(), Receiver()
    weights = EngineWeights(engine, trainer, tmp_path, engine)  # type: ignore[arg-type]  # generates nothing
    assert not weights.can_send()
    weights.use(weights.complete(trainer.named_weights()), trainer)
    change(trainer)
    weights.send(trainer)
    assert engine.calls == ["start weights-1", "receive"]
    assert weights.fingerprint == engine.weights == fingerprint(dict(trainer.named_weights()), torch.float32)
    engine.stop()
    weights.start()
    assert engine.calls[2:] == ["start weights-1", "receive"]
    change(trainer)
    with pytest.raises(EngineError, match="the trainer has others by now"):
        weights.start()
    weights.send(trainer)
    weights.use(weights.complete(trainer.named_weights()), trainer)  # given weights of any origin: a folder
    change(trainer)
    weights.start()  # it has them
    assert engine.calls[-1] == "start weights-2"


def test_a_transfer_that_fails_leaves_the_weights_of_before_to_be_given_again(tmp_path: Path) -> None:
    trainer, engine = make_trainer(), Receiver()
    weights = EngineWeights(engine, trainer, tmp_path, engine)  # type: ignore[arg-type]
    weights.use(weights.complete(trainer.named_weights()), trainer)
    before = weights.fingerprint
    change(trainer)
    engine.failing = WeightSyncError("it did not get them")
    with pytest.raises(WeightSyncError):
        weights.send(trainer)
    assert (weights.fingerprint, weights.sent, engine.running) == (before, 0, False)
    engine.failing = None
    weights.send(trainer)  # starts it first
    assert engine.calls[-2:] == ["start weights-1", "receive"]
