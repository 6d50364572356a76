"""TransformersPolicy: a vision-language policy on transformers, from the tiny model to 7B.

One model, three interfaces:

- rollouts (:class:`bepa_torchrl.policies.base.Sampler`): ``render(contexts)`` then ``sample(prompts, keys)``;
- losses (:class:`bepa_torchrl.policies.base.Learner`; this package's, and TorchRL's ``GRPOLoss``): ``get_dist(rows)``
  returns log-probs of the responses, left padded like
  ``td.get(("tokens", "response"), as_padded_tensor=True, padding_side="left")``. Set the keys of a loss of TorchRL to
  ``action=("tokens", "response")``, ``sample_log_prob=("log_probs", "response")`` and ``entropy_bonus=False``;
- stock TorchRL collectors: ``forward(td)`` reads instruction and screenshot, adds the response, its tokens and
  log-probs, and keeps the history of every running episode.

Example::

    policy = load_policy("checkpoint", preset="compact")
    prompts = policy.render([PromptContext("open the trash", screenshots=[png])])
    responses = policy.sample(prompts, keys=[(seed, iteration, task, slot, step)])
    rows = response_rows(prompts, responses)        # a lazy stack with the keys of bepa_torchrl.data.keys
    log_probs = policy.get_dist(rows).log_probs   # [B, L], differentiable
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.envs.utils import ExplorationType, exploration_type

from bepa_torchrl.checkpoints import checkpoint_folder
from bepa_torchrl.data import keys
from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.policies.actor_module import ACTING_KEYS, EpisodeHistories, act
from bepa_torchrl.policies.finite import check_finite
from bepa_torchrl.policies.tensordict_io import ResponseDistribution, left_pad, read_rows
from bepa_torchrl.policies.transformers.activation_checkpointing import checkpoint_activations
from bepa_torchrl.policies.transformers.checkpoint import Checkpoint, load_checkpoint, no_progress_bars
from bepa_torchrl.policies.transformers.host_state import state_on_cpu
from bepa_torchrl.policies.transformers.lora import (
    Lora,
    adapter_weights,
    add_lora,
    base_weights,
    merged_weights,
    reset_adapters,
    save_adapter,
    save_merged,
    without_adapters,
)
from bepa_torchrl.policies.transformers.pixel_cache import PixelCache
from bepa_torchrl.policies.transformers.processor import PromptProcessor
from bepa_torchrl.policies.transformers.renderer import PROMPT_TOKENS, ChatRenderer
from bepa_torchrl.policies.transformers.sampler import TokenSampler
from bepa_torchrl.policies.transformers.scorer import Scorer
from bepa_torchrl.policies.transformers.vision_features import ImageEncoder, use_linear_patches
from bepa_torchrl.policies.transformers.window_attention import batch_windows
from osworld_gym.atomic import new_folder
from osworld_gym.types import PromptContext
from osworld_gym.uitars.coords import ImageScaling

#: folder of a saved policy's adapters, in addition to the merged weights
ADAPTER_FOLDER = "adapter"

DETERMINISTIC = (ExplorationType.DETERMINISTIC, ExplorationType.MODE, ExplorationType.MEAN)


class TransformersPolicy(TensorDictModuleBase):
    """A Qwen2-VL, Qwen2.5-VL, Qwen3-VL or OpenCUA checkpoint that acts and learns.

    Args:
        checkpoint: model, tokenizer and image processor, from
            :func:`bepa_torchrl.policies.transformers.checkpoint.load_checkpoint`.
        action_text: form of prompts and responses, a name of :data:`osworld_gym.action_text.ACTION_TEXTS`.
        preset: prompt preset of that action text.
        history: which screenshots the prompt contains, ``all``, ``evict_block`` or ``last_k``
            (:mod:`osworld_gym.uitars.history`).
        history_images: k of ``evict_block`` and ``last_k``, which includes the current screenshot; None with ``all``.
        max_prompt_tokens: longer prompts get no response (``render`` returns None). With ``max_new_tokens`` at most the
            model's positions; None: 65,536, or as many as the positions leave.
        max_new_tokens: maximum tokens per response, including the end token.
        max_batch_tokens: maximum tokens per forward batch (prompt + response, including padding), to bound memory.
        max_rows: maximum rows per forward batch.
        temperature: sampling temperature of ``forward`` (``sample`` has an argument for it), and temperature of the
            log-probs for losses, so that old and new log-probs are those of the sampled distribution; 0 acts greedily
            and scores at temperature 1.
        seed: sampling seed of ``forward``.
        action_key: entry in which ``forward`` stores the response text.
        train_vision: False freezes the vision tower; its features are then cached between calls, in training too.
        image_cache_bytes: size of the cache of a frozen tower's features and their PNGs.
        image_cache_gb: memory of the CPU for decoded, resized screenshots and their PNGs, 10^9 bytes
            (:mod:`.pixel_cache`); 0: none are kept.
        image_threads: threads that decode and resize screenshots ahead of need; 0: none.
        max_vision_patches: maximum patches of a pass through the vision tower, to bound memory; a single screenshot may
            have more. None: all screenshots of a forward pass at once.
        head_dtype: in which logits are computed, in sampling and scoring, and the output embedding's gradient summed
            within a forward pass: ``model``, the weights' dtype; or ``float32``, with a copy of that embedding.
        activation_checkpointing: whether the backward pass recomputes decoder layers and vision blocks, so that only
            their inputs are kept in memory (:mod:`.activation_checkpointing`); the results are the same.
        lora: adapters, which are then the only trained parameters (:mod:`.lora`); None: all weights are trained.

    Raises:
        ValueError: ``max_prompt_tokens`` and ``max_new_tokens`` exceed the model's positions; an unknown action text or
            history.
    """

    #: the entries of a row that ``get_dist`` reads, for the losses' ``in_keys``
    scoring_keys = (keys.PROMPT_TOKENS, keys.IMAGES, keys.RESPONSE_TOKENS)

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        action_text: str = "uitars",
        preset: str = "paper",
        history: str = "all",
        history_images: int | None = None,
        max_prompt_tokens: int | None = None,
        max_new_tokens: int = 512,
        max_batch_tokens: int = 32_768,
        max_rows: int = 128,
        temperature: float = 1.0,
        seed: int = 0,
        action_key: str = "action",
        train_vision: bool = True,
        image_cache_bytes: int = 1 << 28,
        image_cache_gb: float = 0.25,
        image_threads: int = 0,
        max_vision_patches: int | None = None,
        head_dtype: Literal["model", "float32"] = "model",
        activation_checkpointing: bool = False,
        lora: Lora | None = None,
    ) -> None:
        super().__init__()
        self.in_keys = [keys.INSTRUCTION, keys.SCREENSHOT]
        self.out_keys = [action_key, *ACTING_KEYS]
        self.model = checkpoint.model
        processor = PromptProcessor(
            checkpoint.tokenizer,
            checkpoint.image_processor,
            end_token_ids=checkpoint.end_token_ids,
            image_token=checkpoint.image_token,
            cache=PixelCache(int(image_cache_gb * 1e9), image_threads),
        )
        self.renderer = ChatRenderer(
            processor,
            model_type=self.model.config.model_type,
            max_prompt_tokens=_prompt_limit(self.model, max_prompt_tokens, max_new_tokens),
            action_text=action_text,
            preset=preset,
            history=history,
            history_images=history_images,
        )
        self.version = 0
        _prepare(self.model, train_vision, lora, seed)
        if activation_checkpointing:
            checkpoint_activations(self.model)
        self.temperature = temperature
        self.seed = seed
        self._forward_count = 0
        self.histories = EpisodeHistories()
        self._action_key = action_key
        weight_rows = self.model.get_output_embeddings().weight.shape[0]
        self.head_dtype = torch.float32 if head_dtype == "float32" else None  #: of logits; None: the weights'
        self.encoder = ImageEncoder(self.model, processor.patcher, image_cache_bytes, max_vision_patches)
        self.sampler = TokenSampler(
            self.model,
            self.encoder,
            image_token_id=processor.image_token_id,
            end_token_ids=checkpoint.end_token_ids,
            blocked_ids=[*processor.special_ids, *range(len(checkpoint.tokenizer), weight_rows)],
            max_new_tokens=max_new_tokens,
            max_batch_tokens=max_batch_tokens,
            max_rows=max_rows,
            head_dtype=self.head_dtype,
        )
        self.scorer = Scorer(
            self.model,
            self.encoder,
            image_token_id=processor.image_token_id,
            max_batch_tokens=max_batch_tokens,
            max_rows=max_rows,
            head_dtype=self.head_dtype,
        )

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        device: torch.device = self.model.device
        return device

    # --- rollouts -----------------------------------------------------------------------------------------------

    @property
    def image_scaling(self) -> ImageScaling:
        """As of the renderer."""
        return self.renderer.image_scaling

    def render(self, contexts: Sequence[PromptContext]) -> list[Prompt | None]:
        """As of the renderer."""
        return self.renderer.render(contexts)

    def encode_response(self, text: str) -> Tensor:
        """As of the renderer."""
        return self.renderer.encode_response(text)

    def sample(
        self, prompts: Sequence[Prompt], keys: Sequence[tuple[int, ...]], *, temperature: float = 1.0
    ) -> list[Response]:
        """One response per prompt; ``keys[i]`` is the seed key of row i (see :mod:`bepa_torchrl.policies.base`)."""
        rows = self.sampler.sample(prompts, keys, temperature=temperature)
        texts = self.renderer.decode_responses([row.tokens.tolist() for row in rows])
        return [Response(text, row.tokens, row.log_probs) for text, row in zip(texts, rows, strict=True)]

    # --- losses -------------------------------------------------------------------------------------------------

    def response_log_probs(
        self, prompts: Sequence[Prompt], responses: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Log-probs and entropies of given responses, per row, float32 ``[L]`` in nats.

        Both are at the policy's ``temperature``. Log-probs are differentiable unless gradients are disabled; entropies
        never are. Rows go through the model in batches of ``max_batch_tokens``; a row that is a prefix of another one
        is computed with it (:mod:`.scorer`).
        """
        log_probs, entropies = self._score(prompts, responses)
        return log_probs, [entropy.detach() for entropy in entropies]

    def _score(self, prompts: Sequence[Prompt], responses: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        return self.scorer.score(prompts, responses, temperature=self.temperature or 1.0)

    def get_dist(self, tensordict: TensorDictBase, logits_key: str = "logits") -> ResponseDistribution:
        """The distribution for TorchRL's losses: log-probs of ``("tokens", "response")``, ``[B, T]``.

        Reads PROMPT_TOKENS, RESPONSE_TOKENS and IMAGES of each row. Left padded; ``mask`` is True at response tokens.
        Its ``token_entropy`` is differentiable, for ``loss.entropy_weight``.
        ``logits_key`` is TorchRL's calling convention; full logits are never computed, so none are written.
        """
        del logits_key
        prompts, responses = read_rows(tensordict)
        log_probs, entropies = self._score(prompts, responses)
        lengths = torch.tensor([len(r) for r in responses], device=self.device)
        width = int(lengths.max())
        mask = torch.arange(width, device=self.device) >= width - lengths[:, None]
        return ResponseDistribution(left_pad(log_probs, width), mask, left_pad(entropies, width))

    def log_prob(self, tensordict: TensorDictBase) -> Tensor:
        """float32 ``[B, T]``, nats: log-probs of the rows' responses, left padded with 0."""
        log_probs: Tensor = self.get_dist(tensordict).log_probs
        return log_probs

    def as_base(self) -> AbstractContextManager[None]:
        """During the block the policy scores as without its adapters: the checkpoint's weights.

        Raises:
            ValueError: it has no adapters.
        """
        if not adapter_weights(self.model):
            raise ValueError("as_base requires adapters: without them the base weights change; load the policy again")
        return without_adapters(self.model)

    # --- stock collectors -----------------------------------------------------------------------------------------

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Adds a response to each row of an environment's batch (any shape), with the entries that training requires.

        Each row's prompt contains its episode's history, as in training. See
        :func:`bepa_torchrl.policies.actor_module.act` for the keys. Greedy under
        ``set_exploration_type(ExplorationType.DETERMINISTIC)``.
        """
        temperature = 0.0 if exploration_type() in DETERMINISTIC else self.temperature
        self._forward_count += 1
        return act(
            self,
            tensordict,
            self.histories,
            seed=self.seed,
            call=self._forward_count,
            temperature=temperature,
            action_key=self._action_key,
        )

    # --- weights ----------------------------------------------------------------------------------------------------

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """(name, detached tensor) of every weight, under the names of a saved checkpoint; tied ones under each name.

        Adapters are merged into the weights (:func:`.lora.merged_weights`).
        """
        yield from merged_weights(self.model)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Replaces all weights, in place, and sets ``version``; adapters become the identity.

        Raises:
            ValueError: a weight is missing, unknown or of another shape; nothing is changed.
        """
        own, given = base_weights(self.model), dict(weights)
        # a tied weight may be given under one name only
        shared = {own[name].data_ptr() for name in given.keys() & own.keys()}
        missing = [name for name, weight in own.items() if name not in given and weight.data_ptr() not in shared]
        unknown = [name for name in given if name not in own]
        reshaped = [name for name in given.keys() & own.keys() if given[name].shape != own[name].shape]
        for fault, names in (("missing", missing), ("unknown", unknown), ("of another shape", reshaped)):
            if names:
                raise ValueError(
                    f"{len(names)} weights are {fault}, such as {names[0]}; expected those of named_weights() of a "
                    "policy with the same model config"
                )
        with torch.no_grad():
            for name, weight in given.items():
                own[name].copy_(weight)
        reset_adapters(self.model)
        self.encoder.forget()
        self.version = version

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes a checkpoint folder for ``AutoModelForImageTextToText`` and :func:`load_policy`, atomically.

        Adapters are merged into its weights, and are also saved in its folder ``adapter``, in PEFT's format.

        Raises:
            FileExistsError: ``path`` exists; nothing is overwritten.
            NonFiniteError: a weight is NaN or infinite; nothing is written.
        """
        target = Path(path)
        if target.exists():
            raise FileExistsError(f"{target} exists; checkpoints are not overwritten: name another folder")
        check_finite(self.model.named_parameters(), f"{target} is not written")
        with new_folder(target) as folder:
            with no_progress_bars():
                state = state_on_cpu(self.model)
                if adapters := adapter_weights(self.model):
                    save_merged(self.model, folder, dict(merged_weights(self.model, state)))
                    save_adapter(self.model, folder / ADAPTER_FOLDER, {name: state[name] for name in adapters})
                else:
                    self.model.save_pretrained(folder, state_dict=state)
            self.renderer.processor.tokenizer.save_pretrained(folder)
            self.renderer.processor.patcher.processor.save_pretrained(folder)
        return target


def _prompt_limit(model: Any, prompt: int | None, response: int) -> int:
    """The longest prompt. Raises ValueError if it and a response exceed the model's positions."""
    positions = int(model.config.get_text_config().max_position_embeddings)
    if prompt is None:
        return min(PROMPT_TOKENS, positions - response)
    if prompt + response > positions:
        raise ValueError(
            f"policy.max_prompt_tokens + policy.max_new_tokens = {prompt + response}, the model has {positions} "
            f"positions; lower policy.max_prompt_tokens to {positions - response}"
        )
    return prompt


def _prepare(model: Any, train_vision: bool, lora: Lora | None, seed: int) -> None:
    """Chooses the trained parameters; ``seed`` initialises the adapters."""
    model.model.visual.requires_grad_(train_vision)
    use_linear_patches(model.model.visual)
    batch_windows(model.model.visual)
    if lora is not None:
        add_lora(model, lora, seed=seed)


def load_policy(
    path_or_id: str | os.PathLike[str],
    *,
    dtype: torch.dtype | str = torch.float32,
    device: torch.device | str = "cpu",
    attn: str = "sdpa",
    **options: Any,
) -> TransformersPolicy:
    """A policy from a checkpoint.

    Args:
        path_or_id: a folder, a hub name, or ``tiny``, ``tiny_free``, ``tiny_plans`` or ``tiny_local``, which the
            package contains.
        dtype: of the weights, as of :func:`bepa_torchrl.policies.transformers.checkpoint.load_checkpoint`.
        device: where the weights are.
        attn: the attention's implementation.
        options: keyword arguments of :class:`TransformersPolicy`.

    Raises:
        CheckpointError, DeviceMemoryError: as of ``load_checkpoint``.
        FileNotFoundError: the package's own checkpoint is missing.
        ValueError: see :class:`TransformersPolicy`.
    """
    folder = checkpoint_folder(os.fspath(path_or_id))
    return TransformersPolicy(load_checkpoint(folder, dtype=dtype, device=device, attn=attn), **options)
