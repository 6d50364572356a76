"""Reads prompts from and writes responses to TensorDict rows; the distribution for TorchRL's losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase, lazy_stack
from torch import Tensor
from torchrl.modules.llm.policies.common import LogProbDistribution

from bepa_torchrl.data import keys
from bepa_torchrl.data.prompt import Prompt, Response
from osworld_gym.types import Screenshot


class ResponseDistribution(LogProbDistribution):
    """Log-probs ``[B, T]`` of the response tokens, left padded with 0, with their mask and ``token_entropy``.

    ``token_entropy`` (float32 ``[B, T]``, nats, 0 at padding) is that of each token's whole distribution,
    differentiable if the log-probs are.
    """

    def __init__(self, log_probs: Tensor, mask: Tensor, token_entropy: Tensor) -> None:
        super().__init__(log_probs, mask)
        self.token_entropy = token_entropy


def response_rows(prompts: Sequence[Prompt], responses: Sequence[Response]) -> TensorDictBase:
    """A lazy stack ``[B]`` with prompt, images, response, its tokens and log-probs (keys of ``keys.py``)."""
    return lazy_stack(
        [
            TensorDict(
                {
                    keys.IMAGES: NonTensorData(prompt.images),
                    keys.RESPONSE: NonTensorData(response.text),
                    keys.PROMPT_TOKENS: prompt.tokens,
                    keys.RESPONSE_TOKENS: response.tokens,
                    keys.ROLLOUT_LOG_PROB: response.log_probs,
                    keys.OLD_LOG_PROB: response.log_probs,
                }
            )
            for prompt, response in zip(prompts, responses, strict=True)
        ]
    )


def left_pad(rows: Sequence[Tensor], width: int) -> Tensor:
    """``[B, width]``: the rows, left padded with 0."""
    return torch.stack([torch.nn.functional.pad(row, (width - len(row), 0)) for row in rows])


def read_rows(tensordict: TensorDictBase) -> tuple[list[Prompt], list[Tensor]]:
    """Prompts and response tokens of rows ``[B]`` (PROMPT_TOKENS, IMAGES, RESPONSE_TOKENS of ``keys.py``).

    Raises:
        ValueError: ``tensordict`` does not have exactly one batch dimension.
    """
    if tensordict.batch_dims != 1:
        raise ValueError(f"expected rows [B], got a batch of shape {list(tensordict.batch_size)}")
    rows = tensordict.unbind(0)
    prompts = [Prompt(row[keys.PROMPT_TOKENS].cpu(), tuple(row[keys.IMAGES])) for row in rows]
    return prompts, [row[keys.RESPONSE_TOKENS] for row in rows]


def as_list(tensordict: TensorDictBase, key: str) -> list[Any]:
    """A non-tensor entry of every row; one entry for a row without batch dimension."""
    if not tensordict.batch_dims:
        return [tensordict[key]]
    return [row[key] for row in tensordict.unbind(0)]


def screenshots(tensordict: TensorDictBase) -> list[bytes]:
    """PNG bytes of every row's frame: ``screenshot_png``, else ``screenshot`` (uint8 ``[B, 3, H, W]``) encoded."""
    if tensordict.get(keys.SCREENSHOT, None) is not None:
        return as_list(tensordict, keys.SCREENSHOT)
    arrays = tensordict["screenshot"].reshape(-1, *tensordict["screenshot"].shape[-3:])
    return [Screenshot(pixels=array.permute(1, 2, 0).cpu().numpy()).png for array in arrays]
