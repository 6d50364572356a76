"""A RowEngine without vLLM: the built-in sampler on the weights of a checkpoint folder, behind a real EngineServer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bepa_torchrl.policies.transformers.lora import Lora
from bepa_torchrl.policies.transformers.policy import TransformersPolicy, load_policy
from bepa_torchrl.scale.engine.engine_interface import EngineOutput, EngineRow, EngineSpec
from bepa_torchrl.scale.engine.http.client import EngineClient
from bepa_torchrl.scale.engine.http.server import EngineServer
from bepa_torchrl.scale.wire.access import Access

TOKEN = b"0123456789abcdef"


class BuiltInEngine:
    """Samples as the policy in training does."""

    def __init__(self, spec: EngineSpec, start_timeout: float, stall_timeout: float) -> None:
        self.spec, self.timeouts = spec, (start_timeout, stall_timeout)
        self.policy: TransformersPolicy | None = None
        self.loads: list[str] = []
        self.model = ""

    @property
    def running(self) -> bool:
        return self.policy is not None

    def start(self, model: Path) -> None:
        self.loads.append(model.name)
        self.model = model.name
        self._load(model, None)

    def _load(self, model: Path, lora: Lora | None) -> None:
        spec = self.spec
        self.policy = load_policy(
            model,
            dtype=spec.dtype,
            max_prompt_tokens=spec.window - spec.max_new_tokens,
            max_new_tokens=spec.max_new_tokens,
            max_rows=spec.max_rows,
            lora=lora,
        )
        assert self.policy.renderer.processor.image_token_id == spec.image_token_id
        self.policy.sampler.blocked_ids = list(spec.blocked_ids)
        self.policy.sampler.end_token_ids = frozenset(spec.end_token_ids)

    def reload(self, model: Path) -> None:
        self.start(model)

    def use_adapter(self, folder: Path) -> None:
        """Of a new policy: PEFT's adapters of the folder on the weights of the last start."""
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        self.loads.append(folder.name)
        assert config["r"] == self.spec.lora_rank
        lora = Lora(config["r"], config["lora_alpha"], targets=self.spec.lora_targets, adapter=folder)
        self._load(folder.with_name(self.model), lora)

    def stop(self) -> None:
        self.policy = None

    def generate(self, rows: Sequence[EngineRow]) -> list[EngineOutput]:
        assert self.policy is not None
        (temperature,) = {row.temperature for row in rows}
        found = self.policy.sample([row.prompt for row in rows], [row.key for row in rows], temperature=temperature)
        return [
            EngineOutput(
                response.tokens[: row.max_tokens], response.log_probs[: row.max_tokens], len(row.prompt.tokens), 0
            )
            for response, row in zip(found, rows, strict=True)
        ]


@contextmanager
def served(folder: Path, *, port: int = 0, kind: type[BuiltInEngine] = BuiltInEngine) -> Iterator[EngineServer]:
    """A server on this machine."""
    server = EngineServer(("127.0.0.1", port), TOKEN, folder=folder, make_engine=kind, version="0.0")
    try:
        yield server
    finally:
        server.close()


def access_to(server: EngineServer, token: bytes = TOKEN) -> Access:
    """How the server is reached."""
    return Access(server.url, token)


def client_of(server: EngineServer, token: bytes = TOKEN) -> EngineClient:
    """A client of the server."""
    return EngineClient(access_to(server, token))
