"""A fixed probe that shows which weights an engine has: text, one image, two images.

Every silent fault of a weight sync (a stale head, a stale cache, pixels normalised twice) changes log-probs of at least
one of the three. The prompts never change, so that a prefix cache that was not reset is used.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.policies.transformers.processor import PromptProcessor
from bepa_torchrl.policies.vllm.errors import WeightSyncError

#: seed keys of the probe's responses
PROBE_KEYS = ((0, 0, 0, 0), (0, 0, 1, 0), (0, 0, 2, 0))
PROBE_TOKENS = 8  #: maximum tokens per response
NAMES = ("text", "one image", "two images")
#: nats by which the trainer's log-probs must change, with weights that were sent, before the engine's have to: what
#: float32 log-probs can show (about 4 units in the last place near -4), in bfloat16 far below any change that is not 0
_VISIBLE = 1e-6
#: the same if the weights that were sent have not changed, as a share of the tolerance
_UNSENT = 0.1


def probe_prompts(processor: PromptProcessor, *, text_tokens: int = 160) -> list[Prompt]:
    """The prompts, without, with one and with two images.

    Args:
        processor: renders them.
        text_tokens: minimum text tokens; more than a block of the engine's prefix cache (128 tokens on a CPU).
    """
    words = "click"
    while len(processor.encode_response(words)) < text_tokens:
        words += f" {words.count(' ')} click"
    conversations = [
        [
            {
                "role": "user",
                "content": [{"type": "text", "text": words}]
                + [{"type": "image", "image": _screenshot(seed)} for seed in range(images)],
            }
        ]
        for images in range(3)
    ]
    return processor.render(conversations)


def _screenshot(seed: int, size: int = 128) -> bytes:
    tiles = np.random.default_rng(seed).integers(0, 256, (size // 16, size // 16, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(np.kron(tiles, np.ones((16, 16, 1), dtype=np.uint8))).save(buffer, format="PNG")
    return buffer.getvalue()


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What the engine sampled for the probe, and the trainer's log-probs of the same tokens.

    Args:
        version: of the weights.
        weights: fingerprint of the weights that were sent (:func:`.folder.fingerprint`).
        sampled: the engine's responses.
        scored: float32 ``[L]`` each, nats, the trainer's log-probs of these tokens.
    """

    version: int
    weights: str
    sampled: tuple[Response, ...]
    scored: tuple[Tensor, ...]

    def errors(self) -> list[float]:
        """Per prompt the largest absolute difference of log-probs between engine and trainer."""
        return [
            (response.log_probs - scored).abs().max().item()
            for response, scored in zip(self.sampled, self.scored, strict=True)
        ]


def check_probe(result: ProbeResult, before: ProbeResult | None, *, tolerance: float) -> None:
    """Checks that the engine has the trainer's weights.

    Stale weights of a small step differ from the trainer's by less than the tolerance, which in bfloat16 is rounding:
    they are noticed because nothing at all has changed, although other weights were sent.

    Args:
        result: after the sync.
        before: after the sync before this one; None: there was none.
        tolerance: maximum difference of log-probs, nats.

    Raises:
        WeightSyncError: the engine's log-probs differ from the trainer's, or are unchanged where the trainer's are not.
    """
    errors = result.errors()
    worst = max(range(len(errors)), key=lambda i: errors[i])
    if not errors[worst] <= tolerance:
        listed = ", ".join(f"{name} {error:.1e}" for name, error in zip(NAMES, errors, strict=False))
        raise WeightSyncError(
            f"after the sync of version {result.version} the engine's log-probs differ from the trainer's by "
            f"{errors[worst]:.1e} > {tolerance:g} nats ({listed}): it has other weights, stale caches, or processes "
            "images differently; the run stops, since its rollouts would be off-policy"
        )
    if before is not None:
        _check_changed(result, before, tolerance)


def _check_changed(result: ProbeResult, before: ProbeResult, tolerance: float) -> None:
    moved = max(_change(a, b) for a, b in zip(before.scored, result.scored, strict=True))
    same = all(
        torch.equal(a.tokens, b.tokens) and torch.equal(a.log_probs, b.log_probs)
        for a, b in zip(before.sampled, result.sampled, strict=True)
    )
    sent = result.weights != before.weights
    if same and moved > (_VISIBLE if sent else _UNSENT * tolerance):
        cause = "the engine has" if sent else "it was sent"
        raise WeightSyncError(
            f"the sync of version {result.version} did not change the engine's log-probs, the trainer's changed by "
            f"{moved:.1e} nats: {cause} the weights of version {before.version}"
        )


def _change(before: Tensor, after: Tensor) -> float:
    """The largest change of log-probs, 0 if the number of tokens differs (then other tokens were sampled)."""
    return (after - before).abs().max().item() if before.shape == after.shape else 0.0


def check_same_weights(now: Sequence[Response], recorded: Sequence[Response], *, tolerance: float) -> None:
    """Checks an engine that was started again: the probe's responses are those recorded at its last sync.

    Raises:
        WeightSyncError: tokens or log-probs differ.
    """
    for response, other, name in zip(now, recorded, NAMES, strict=False):
        same = torch.equal(response.tokens, other.tokens)
        if not same or (response.log_probs - other.log_probs).abs().max().item() > tolerance:
            raise WeightSyncError(f"an engine started again samples the probe ({name}) differently: other weights")
