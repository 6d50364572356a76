"""A fixed probe that shows which weights an engine has: text, one image, two images.

Every silent fault of a weight sync (a stale head, a stale cache, pixels normalised twice) changes log-probs of at least
one of the three. The prompts never change, so that a prefix cache that was not reset is used.

Engine and trainer compute with different kernels, so that in half precision single log-probs differ by rounding: a
bfloat16 logit between 16 and 32 has steps of 0.125. The check therefore looks at means over many tokens, which rounding
hardly moves and a wrong weight does (``benchmarks.sync_rounding`` has the figures behind the tolerances,
``benchmarks.sync_perturbations`` the smallest wrong weights that are noticed).
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.policies.transformers.processor import PromptProcessor
from bepa_torchrl.scale.engine.errors import WeightSyncError

NAMES = ("text", "one image", "two images")
PROBE_ROWS = 16  #: responses per prompt
PROBE_TOKENS = 16  #: maximum tokens per response
#: seed keys of the probe's responses; row i has prompt ``i % 3``
PROBE_KEYS = tuple((0, 0, i % len(NAMES), i // len(NAMES)) for i in range(len(NAMES) * PROBE_ROWS))
#: maximum mean absolute difference of log-probs between engine and trainer, nats (``benchmarks.sync_rounding``)
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.1}
#: share of the tokens that an engine which was started again must sample as before: on a GPU rounding changes a few
_SAME_TOKENS = 0.5
#: nats by which the trainer's log-probs must change, with weights that were sent, before the engine's have to: what
#: float32 log-probs can show (about 4 units in the last place near -4), in bfloat16 far below any change that is not 0
_VISIBLE = 1e-6
#: the same if the weights that were sent have not changed, as a share of the tolerance
_UNSENT = 0.1


def probe_prompts(processor: PromptProcessor, *, text_tokens: int = 160) -> list[Prompt]:
    """One prompt per row of :data:`PROBE_KEYS`: without, with one and with two images, in turn.

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
    return processor.render(conversations) * PROBE_ROWS


def _screenshot(seed: int, size: int = 128) -> bytes:
    tiles = np.random.default_rng(seed).integers(0, 256, (size // 16, size // 16, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(np.kron(tiles, np.ones((16, 16, 1), dtype=np.uint8))).save(buffer, format="PNG")
    return buffer.getvalue()


class Difference(NamedTuple):
    """How the log-probs of an engine and of the trainer differ over the tokens of one kind of prompt.

    Args:
        mean: mean absolute difference, nats.
        kl: estimate of KL(engine ‖ trainer) per token, nats: the mean of ``exp(d) - 1 - d`` with d = trainer - engine,
            over tokens that the engine sampled (Schulman's k3, http://joschu.net/blog/kl-approx.html).
    """

    mean: float
    kl: float


def difference(engine: Tensor, trainer: Tensor) -> Difference:
    """The difference of float ``[N]`` log-probs of the same tokens, nats; 0 for no tokens, NaN if a value is NaN."""
    if not len(engine):
        return Difference(0.0, 0.0)
    d = trainer.double() - engine.double()
    return Difference(d.abs().mean().item(), (d.exp() - 1 - d).mean().item())


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What the engine sampled for the probe, and the trainer's log-probs of the same tokens.

    Args:
        version: the version of the weights.
        weights: fingerprint of the weights that were sent (:func:`.folder.fingerprint`).
        sampled: the engine's responses.
        scored: float32 ``[L]`` each, nats, the trainer's log-probs of these tokens.
    """

    version: int
    weights: str
    sampled: tuple[Response, ...]
    scored: tuple[Tensor, ...]

    def differences(self) -> dict[str, Difference]:
        """The difference of each kind of prompt."""
        kinds = range(min(len(NAMES), len(self.sampled)))
        return {
            NAMES[kind]: difference(
                torch.cat([response.log_probs for response in self.sampled[kind :: len(NAMES)]]),
                torch.cat(self.scored[kind :: len(NAMES)]),
            )
            for kind in kinds
        }


def check_probe(result: ProbeResult, before: ProbeResult | None, *, tolerance: float) -> None:
    """Checks that the engine has the trainer's weights.

    Stale weights of a small step differ from the trainer's by less than the tolerance, which in bfloat16 is rounding:
    they are noticed because nothing at all has changed, although other weights were sent.

    Args:
        result: after the sync.
        before: after the sync before this one; None: there was none.
        tolerance: maximum mean absolute difference of log-probs, nats, of each kind of prompt; the estimated KL may be
            ``2 * tolerance**2``, which a root mean square of twice the tolerance has.

    Raises:
        WeightSyncError: the engine's log-probs differ from the trainer's, or are unchanged where the trainer's are not.
    """
    differences = result.differences()
    if not all(values.mean <= tolerance and values.kl <= 2 * tolerance**2 for values in differences.values()):
        listed = ", ".join(f"{name} {values.mean:.1e} (KL {values.kl:.1e})" for name, values in differences.items())
        raise WeightSyncError(
            f"after the sync of version {result.version} the engine's log-probs differ from the trainer's by a mean of "
            f"{listed}, expected at most {tolerance:g} nats (KL {2 * tolerance**2:.1e}): it has other weights, stale "
            "caches, or processes images differently; the run stops, since its rollouts would be off-policy. If the "
            "engine is known to be right (a quantised one), set policy.engine.tolerance"
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
    """Checks an engine that was started again against its responses to the probe at its last sync.

    Tokens are compared until the first that differs in a response: on a GPU rounding depends on how rows are batched,
    and may change a token and all that follow it.

    Args:
        now: the responses of the engine that was started again.
        recorded: those at the last sync.
        tolerance: maximum mean absolute difference of their log-probs, nats.

    Raises:
        WeightSyncError: too few tokens are the same, or their log-probs differ.
    """
    pairs = list(zip(now, recorded, strict=True))
    common = [_common(a.tokens, b.tokens) for a, b in pairs]
    total = sum(len(response.tokens) for response in recorded)
    drift = difference(
        torch.cat([b.log_probs[:n] for (_, b), n in zip(pairs, common, strict=True)]),
        torch.cat([a.log_probs[:n] for (a, _), n in zip(pairs, common, strict=True)]),
    )
    if sum(common) < _SAME_TOKENS * total or not drift.mean <= tolerance:
        raise WeightSyncError(
            f"an engine started again samples the probe differently: {sum(common)} of {total} tokens are the same, "
            f"their log-probs differ by a mean of {drift.mean:.1e} nats (expected at least half of them and at most "
            f"{tolerance:g}): it has other weights"
        )


def _common(a: Tensor, b: Tensor) -> int:
    """Number of equal tokens before the first difference."""
    length = min(len(a), len(b))
    different = (a[:length] != b[:length]).nonzero()
    return int(different[0]) if len(different) else length
