"""PromptProcessor: chat messages to prompt tokens (chat template, image tokens), without AutoProcessor and torchvision.

A past response with known token ids is inserted as these ids, never tokenised again from its text: the text of sampled
tokens often has another, shorter tokenisation. The prompt of step t + 1 then begins with the prompt and response of
step t, token for token, so that both share a forward pass (:mod:`.scorer`) and an inference engine's prefix cache.

Text is data: the name of a special token inside an instruction or response (``<|im_end|>``, ``<|image_pad|>``) is split
before tokenisation, so that it can neither end a turn nor count as an image. Box tokens are kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from bepa_torchrl.data.prompt import Prompt
from bepa_torchrl.policies.transformers.image_patches import ImagePatcher
from bepa_torchrl.policies.transformers.pixel_cache import PixelCache

IMAGE_TOKEN = "<|image_pad|>"
#: special tokens that the policy may generate and that are part of its text
BOX_TOKENS = ("<|box_start|>", "<|box_end|>")
#: tokens that structure the prompt; treated as special even if the tokenizer's file does not mark them so
STRUCTURE_TOKENS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    IMAGE_TOKEN,
    "<|video_pad|>",
)

#: replaces a past response in the text of the chat template; like special tokens it is disarmed in texts
_PAST_RESPONSE = "\ue000past response\ue001"

Message = Mapping[str, Any]


class PromptProcessor:
    """Converts chat messages to a :class:`Prompt`, and response texts to token ids and back.

    Args:
        tokenizer: the checkpoint's tokenizer, with its chat template.
        image_processor: transformers' PIL image processor with the checkpoint's settings.
        end_token_ids: tokens that end a response; the first is appended to encoded responses.
        image_token: the token that the chat template writes for an image.
        cache: the cache of decoded, resized screenshots; None: nothing is kept.

    Raises:
        ValueError: no end token.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        image_processor: Qwen2VLImageProcessorPil,
        end_token_ids: Sequence[int],
        image_token: str = IMAGE_TOKEN,
        cache: PixelCache | None = None,
    ) -> None:
        if not end_token_ids:
            raise ValueError("PromptProcessor requires at least one end token, got none")
        self.tokenizer = tokenizer
        self.patcher = ImagePatcher(image_processor, cache)
        self.end_token_ids = tuple(int(i) for i in end_token_ids)
        self.image_token_id: int = tokenizer.get_vocab()[image_token]
        vocabulary = tokenizer.get_vocab()
        special = {t.content: i for i, t in tokenizer.added_tokens_decoder.items() if t.special}
        special |= {name: vocabulary[name] for name in (*STRUCTURE_TOKENS, image_token) if name in vocabulary}
        special |= dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
        self._special = {name: int(i) for name, i in special.items() if name not in BOX_TOKENS}
        names = sorted((*self._special, _PAST_RESPONSE), key=len, reverse=True)
        self._disarm_pattern = re.compile("|".join(re.escape(name) for name in names))
        self._hidden_ids = frozenset(self._special.values())

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of special tokens that are never part of a response's text (end tokens among them)."""
        return self._hidden_ids

    def disarm(self, text: str) -> str:
        """``text`` with a space after the first character of every special token's name."""
        return self._disarm_pattern.sub(lambda match: match[0][0] + " " + match[0][1:], text)

    def render(self, conversations: Sequence[Sequence[Message]]) -> list[Prompt]:
        """One prompt per conversation, ending with the generation prompt (``<|im_start|>assistant``).

        A text part with ``tokens`` (:func:`osworld_gym.uitars.prompt.build_messages`) is inserted as these token ids.

        Raises:
            ValueError: the chat template changes or omits a response or an image.
        """
        read = [self._plain(messages) for messages in conversations]
        texts = []
        for plain, _, responses in read:
            rendered = self.tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=True)
            pieces = str(rendered).split(_PAST_RESPONSE)
            if len(pieces) != len(responses) + 1:
                raise ValueError(
                    f"the chat template wrote {len(pieces) - 1} of {len(responses)} past responses: "
                    "use a template that writes each one unchanged"
                )
            texts.append(pieces)
        if not texts:
            return []
        ids = iter(
            self.tokenizer([piece for pieces in texts for piece in pieces], add_special_tokens=False)["input_ids"]
        )
        return [
            Prompt(self._expand(_joined([next(ids) for _ in pieces], responses), images), images)
            for pieces, (_, images, responses) in zip(texts, read, strict=True)
        ]

    def _plain(
        self, messages: Sequence[Message]
    ) -> tuple[list[dict[str, Any]], tuple[bytes, ...], list[Sequence[int]]]:
        """Messages for the template, their images in order, and the token ids of past responses in order.

        In the messages texts are disarmed, images have no bytes, and past responses are ``_PAST_RESPONSE``.
        """
        plain: list[dict[str, Any]] = []
        images: list[bytes] = []
        responses: list[Sequence[int]] = []
        for message in messages:
            content = message["content"]
            if isinstance(content, str):
                plain.append({"role": message["role"], "content": self.disarm(content)})
                continue
            parts = []
            for part in content:
                if part["type"] == "image":
                    images.append(part["image"])
                    parts.append({"type": "image"})
                elif "tokens" in part:
                    responses.append(part["tokens"])
                    parts.append({"type": "text", "text": _PAST_RESPONSE})
                else:
                    parts.append({"type": "text", "text": self.disarm(part["text"])})
            plain.append({"role": message["role"], "content": parts})
        return plain, tuple(images), responses

    def _expand(self, ids: Sequence[int], images: Sequence[bytes]) -> torch.Tensor:
        """int64 ``[P]``: each image token of the template repeated once per merged patch of its image."""
        tokens = np.asarray(ids, dtype=np.int64)
        places = np.flatnonzero(tokens == self.image_token_id)
        if len(places) != len(images):
            raise ValueError(
                f"the chat template wrote {len(places)} image tokens for {len(images)} images: "
                "use the template of a vision-language checkpoint"
            )
        repeats = np.ones(len(tokens), dtype=np.int64)
        repeats[places] = [self.patcher.num_tokens(image) for image in images]
        return torch.from_numpy(np.repeat(tokens, repeats))

    def encode_response(self, text: str) -> torch.Tensor:
        """int64 ``[L]``: tokens of the response text, followed by the first end token."""
        ids = self.tokenizer(self.disarm(text), add_special_tokens=False)["input_ids"]
        return torch.tensor([*ids, self.end_token_ids[0]], dtype=torch.int64)

    def decode_responses(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Texts of sampled tokens, without special tokens other than the box tokens."""
        kept = [[i for i in row if i not in self._hidden_ids] for row in rows]
        options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        return [str(self.tokenizer.decode(row, **options)) for row in kept]

    def model_inputs(self, prompts: Sequence[Prompt]) -> dict[str, torch.Tensor]:
        """Inputs for ``model(**inputs)`` or ``model.generate(**inputs)`` of transformers, left padded.

        They include ``mm_token_type_ids``, without which the model silently positions image tokens as text. The policy
        itself uses :mod:`bepa_torchrl.policies.transformers.batching`.
        """
        width = max(len(p.tokens) for p in prompts)
        pad = self.end_token_ids[0] if self.tokenizer.pad_token_id is None else int(self.tokenizer.pad_token_id)
        ids = torch.full((len(prompts), width), pad, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt.tokens) :] = prompt.tokens
            mask[row, width - len(prompt.tokens) :] = 1
        inputs = {
            "input_ids": ids,
            "attention_mask": mask,
            "mm_token_type_ids": ((ids == self.image_token_id) & (mask == 1)).to(torch.int32),
        }
        images = [image for prompt in prompts for image in prompt.images]
        if images:
            inputs["pixel_values"] = torch.from_numpy(np.concatenate([self.patcher.patches(i) for i in images]))
            inputs["image_grid_thw"] = torch.tensor([self.patcher.grid(i) for i in images])
        return inputs


def _joined(pieces: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> list[int]:
    """The template's pieces with a response between each two; an end token that both have is written once."""
    joined = list(pieces[0])
    for response, piece in zip(responses, pieces[1:], strict=True):
        joined += response
        joined += piece[1:] if response and piece and response[-1] == piece[0] else piece
    return joined
