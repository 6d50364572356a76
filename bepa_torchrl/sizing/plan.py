"""A plan: every size of a training run, as plain values for JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from bepa_torchrl.sizing import duration
from bepa_torchrl.sizing.duration import Iteration
from bepa_torchrl.sizing.flops import Flops, recomputed
from bepa_torchrl.sizing.gpus import gpu
from bepa_torchrl.sizing.memory import kv_bytes, trained_parameters
from bepa_torchrl.sizing.model import ModelShape
from bepa_torchrl.sizing.recipes import Choice, best, choices, recipes
from bepa_torchrl.sizing.tokens import EpisodeShape, Grid


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What is planned.

    Args:
        model: the model.
        grid: patches of a screenshot.
        episode: an episode of the maximum number of steps.
        work: one iteration.
        gpu: a name of :data:`bepa_torchrl.sizing.gpus.GPUS`.
        gpus: their number.
        mfu: model FLOPs utilisation of training and prefill, in (0, 1].
        decode_speed: tokens per second of the GPU that samples; None: estimated by the memory's bandwidth.
        desktops: episodes that run at once.
        element: bytes per element of the model's dtype.
        train_vision: whether full training trains the vision tower.
        rank: rank of LoRA adapters.
        tune: which recipes are considered; None: all.
        engine_cache: bytes of the key-value cache of the inference engine on the GPU that samples; None: the built-in
            sampler, or an engine on another machine.
    """

    model: ModelShape
    grid: Grid
    episode: EpisodeShape
    work: Iteration
    gpu: str
    gpus: int
    mfu: float
    decode_speed: float | None
    desktops: int
    element: int
    train_vision: bool
    rank: int
    tune: Literal["full", "lora"] | None
    engine_cache: int | None = None


def make_plan(request: PlanRequest) -> dict[str, Any]:
    """The plan: ``parameters``, ``tokens``, ``flops_per_episode``, ``gpu``, ``choices``, ``best``, ``seconds``.

    Bytes, seconds and floating-point operations are plain numbers. FLOPs are of the best choice, or, if none fits, of
    the first one; ``seconds`` is None then.

    Raises:
        ValueError: an unknown GPU.
    """
    device, sequences = gpu(request.gpu), request.episode.sequences()
    options = [
        (name, recipe)
        for name, recipe in recipes(
            element=request.element,
            train_vision=request.train_vision,
            rank=request.rank,
            shards=request.gpus,
            engine_cache=request.engine_cache,
        )
        if request.tune is None or (recipe.training.rank > 0) == (request.tune == "lora")
    ]
    found = choices(request.model, device, request.grid, max(sequences), options)
    chosen = best(found)
    return {
        "parameters": _parameters(request),
        "tokens": _tokens(request),
        "flops_per_episode": _flops(request, chosen or found[0]),
        "gpu": {"name": request.gpu, "count": request.gpus, **asdict(device)},
        "kv_cache_bytes_per_token": kv_bytes(request.model.text, request.element),
        "choices": [_described(request, choice) for choice in found],
        "best": None if chosen is None else chosen.name,
        "seconds": None if chosen is None else _seconds(request, chosen),
    }


def _parameters(request: PlanRequest) -> dict[str, int]:
    model = request.model
    return {"total": model.parameters, "decoder": model.text.parameters, "vision": model.vision.parameters}


def _tokens(request: PlanRequest) -> dict[str, Any]:
    episode = request.episode
    shared, alone = episode.sequences(), episode.rows()
    return {
        "patches_per_screenshot": request.grid.patches,
        "screenshot": episode.image,
        "head": episode.head,
        "response": episode.response,
        "prompts": [episode.prompt(step) for step in range(1, episode.steps + 1)],
        "longest_row": max(alone).tokens,
        "episode": sum(sequence.tokens for sequence in shared),
        "episode_row_by_row": sum(row.tokens for row in alone),
        "images": sum(sequence.images for sequence in shared),
        "images_row_by_row": sum(row.images for row in alone),
    }


def _flops(request: PlanRequest, choice: Choice) -> dict[str, Any]:
    model, episode, grid, training = request.model, request.episode, request.grid, choice.recipe.training
    sequences = episode.sequences()
    case = (
        model,
        [sequence.tokens for sequence in sequences],
        [grid] * sum(sequence.images for sequence in sequences),
        episode.steps * episode.response,
    )
    checkpointing = choice.recipe.checkpointing
    return {
        "forward": _parts(duration.episode_forward(model, episode, grid, training.rank)),
        "backward": _parts(duration.episode_backward(model, episode, grid, training)),
        "recomputed": _parts(recomputed(*case, training=training, checkpointing=checkpointing)),
        "forward_row_by_row": _parts(duration.rows_forward(model, episode, grid)),
    }


def _parts(flops: Flops) -> dict[str, int]:
    return {**asdict(flops), "total": flops.total}


def _described(request: PlanRequest, choice: Choice) -> dict[str, Any]:
    recipe = choice.recipe
    return {
        "name": choice.name,
        "trained_parameters": trained_parameters(request.model, recipe.training),
        "optimizer": recipe.optimizer,
        "checkpointing": recipe.checkpointing,
        "bytes_per_gpu": {**asdict(choice.memory), "total": choice.memory.total},
        "fits": choice.fits,
        "max_tokens": choice.max_tokens,
        "rollouts_that_fit": choice.rollouts,
    }


def _seconds(request: PlanRequest, choice: Choice) -> dict[str, float]:
    device, episode = gpu(request.gpu), request.episode
    rows = max(1, min(choice.rollouts, request.desktops, request.work.episodes))
    context = sum(row.tokens for row in episode.rows()) / episode.steps
    estimated = duration.decode_speed(request.model, device, rows, context, request.element)
    speed = estimated if request.decode_speed is None else request.decode_speed
    seconds = duration.iteration_seconds(
        request.model,
        episode,
        request.grid,
        request.work,
        choice.recipe.training,
        flops_per_second=request.gpus * request.mfu * device.flops,
        sampling_share=1 / request.gpus,  # with train.ranks rank 0 samples alone
        tokens_per_second=speed,
    )
    return {**asdict(seconds), "total": seconds.total, "decoded_tokens_per_second": speed}
