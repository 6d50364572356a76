"""EngineWeights: the weights that an engine was given, as folders from which it can be started again."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from bepa_torchrl.policies.transformers.lora import adapter_weights, base_weights
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.scale.engine.engine_interface import ReceivingEngine, RowEngine
from bepa_torchrl.scale.engine.errors import EngineError
from bepa_torchrl.scale.engine.weight_sync.adapters import write_adapter
from bepa_torchrl.scale.engine.weight_sync.folder import complete_weights, fingerprint, write_checkpoint
from bepa_torchrl.scale.engine.weight_sync.stream import WeightStream


class EngineWeights:
    """Lets an engine load weights from a folder, all of them or adapters alone, or sends them without one.

    The first weights are always in a folder, with which the engine starts, and starts again.

    Args:
        engine: gets the weights; started with the first ones.
        trainer: the policy whose weights they are; later ones must be of the same model config.
        folder: for checkpoints and adapters.
        receiver: the engine, if it gets the trainer's weights without a file once it has started.
    """

    def __init__(
        self,
        engine: RowEngine,
        trainer: TransformersPolicy,
        folder: Path,
        receiver: ReceivingEngine | None = None,
    ) -> None:
        self._engine, self._receiver, self._trainer, self._folder = engine, receiver, trainer, folder
        self.dtype: torch.dtype = trainer.model.dtype
        self.expected = {
            name: (self.dtype if weight.is_floating_point() else weight.dtype, tuple(weight.shape))
            for name, weight in trainer.named_weights()
        }
        self.shapes = {name: shape for name, (_, shape) in self.expected.items()}
        self._received = False  # whether the engine has weights that are in no folder
        self.sent = 0  #: syncs without a file
        self.fingerprint = ""  #: of the engine's weights and adapters
        self._model: Path | None = None  # checkpoint of the engine's weights
        self._adapter: Path | None = None  # its adapters, if they are not merged
        self._checkpoint = ""  # fingerprint of the checkpoint
        self._writes = 0

    @property
    def given(self) -> bool:
        """Whether the engine was given weights."""
        return self._model is not None

    def complete(self, weights: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
        """The weights under every name. Raises ValueError if one is missing, unknown or of another shape."""
        return complete_weights(weights, self.shapes)

    def use(self, complete: dict[str, Tensor], trainer: TransformersPolicy) -> None:
        """Gives the engine all weights; it has no adapters then.

        Raises:
            WeightSyncError, EngineError: the engine does not load them, or does not start with them.
        """
        new = write_checkpoint(
            self._next("weights"),
            complete,
            model=trainer.model,
            tokenizer=trainer.renderer.processor.tokenizer,
            image_processor=trainer.renderer.processor.patcher.processor,
            dtype=self.dtype,
        )
        if self._engine.running:
            self._engine.reload(new)
        else:
            self._engine.stop()
            self._engine.start(new)
        self.fingerprint = self._checkpoint = fingerprint(complete, self.dtype)
        self.remove()
        self._model, self._received = new, False

    def can_send(self) -> bool:
        """Whether :meth:`send` is possible: the engine gets weights without a file, and has a folder to start from."""
        return self._receiver is not None and self.given

    def send(self, trainer: TransformersPolicy) -> None:
        """Gives the engine all weights of the trainer without a file; starts it first if it has exited.

        Raises:
            WeightSyncError, EngineError: the engine does not get them, or does not start.
        """
        assert self._receiver is not None
        assert self._model is not None
        if not self._engine.running:
            self._engine.stop()
            self._engine.start(self._model)
        stream = WeightStream(trainer.named_weights, self.expected)
        self._receiver.receive(stream)
        self.fingerprint = self._checkpoint = stream.fingerprint
        self._trainer, self._received = trainer, True
        self.sent += 1

    def keep_to_folders(self) -> None:
        """Sends nothing without a file any more."""
        self._receiver = None

    def use_adapters(self, trainer: TransformersPolicy) -> None:
        """Gives the engine the trainer's adapters, and the weights below them if it has others.

        Raises:
            WeightSyncError, EngineError: the engine does not load them, or does not start.
        """
        below = self.complete(base_weights(trainer.model).items())
        if self._model is None or fingerprint(below, self.dtype) != self._checkpoint:
            self.use(below, trainer)
        elif not self._engine.running:
            self._engine.stop()
            self._engine.start(self._model)
        weights = adapter_weights(trainer.model)
        new = write_adapter(self._next("adapter"), weights, model=trainer.model, dtype=self.dtype)
        self._engine.use_adapter(new)
        self.fingerprint = f"{self._checkpoint} {fingerprint(weights, self.dtype)}"
        _remove(self._adapter)
        self._adapter = new

    def start(self) -> None:
        """Starts the engine again with its weights. Raises EngineError if it does not start or load them.

        Weights that are in no folder are the trainer's, which must not have changed since.
        """
        assert self._model is not None
        if self._received:
            now = fingerprint(dict(self._trainer.named_weights()), self.dtype)
            if now != self.fingerprint:
                raise EngineError(
                    "the engine cannot be given its weights again: they were sent without a file, and the trainer has "
                    "others by now; set policy.engine.weights=folder"
                )
        self._engine.start(self._model)
        if self._received:
            self.send(self._trainer)
        if self._adapter is not None:
            self._engine.use_adapter(self._adapter)

    def remove(self) -> None:
        """Removes the folders; the engine may go on."""
        _remove(self._model)
        _remove(self._adapter)
        self._model = self._adapter = None

    def _next(self, kind: str) -> Path:
        """A new folder's path. Its number is not used again: an engine elsewhere distinguishes weights by this name."""
        self._writes += 1
        return self._folder / f"{kind}-{self._writes}"


def _remove(folder: Path | None) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
