"""A plan: every size of a training run, as plain values for JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from bepa_torchrl.sizing import duration, sampling
from bepa_torchrl.sizing.duration import Iteration, Seconds
from bepa_torchrl.sizing.flops import Flops, recomputed
from bepa_torchrl.sizing.gpus import gpu
from bepa_torchrl.sizing.memory import kv_bytes, trained_parameters
from bepa_torchrl.sizing.model import ModelShape
from bepa_torchrl.sizing.recipes import Choice, best, choices, recipes
from bepa_torchrl.sizing.sampling import Sampling
from bepa_torchrl.sizing.tokens import EpisodeShape, Grid
from bepa_torchrl.sizing.whole_run import Desktops, Evaluations, sync_seconds, whole_run


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
        max_rows: maximum rows of a sampling batch.
        max_batch_tokens: maximum tokens of a batch of the built-in sampler.
        max_prompt_tokens: maximum tokens of a prompt.
        max_new_tokens: maximum tokens of a response.
        element: bytes per element of the model's dtype.
        train_vision: whether full training trains the vision tower.
        rank: rank of LoRA adapters.
        tune: which recipes are considered; None: all.
        engine_cache: bytes of the key-value cache of an inference engine, on each of its GPUs; None: the built-in
            sampler.
        engine_sleeps: whether the engine gives its memory up during updates.
        engine_elsewhere: whether the engine has other GPUs than the trainer, so that its memory is not counted.
        engine_workers: GPUs over which the engine is divided; its time is that of one.
        whole_gradients: whether each of several GPUs keeps a whole gradient during a step.
        base_copies: whether there is a copy of the base policy: in full training, with adapters.
        image_cache_gb: 10^9 bytes of the CPU for prepared screenshots.
        image_threads: threads that prepare screenshots.
        playing: the desktops' times.
        iterations: the iterations of the run.
        evaluations: the evaluations of the run.
        adapters_alone: whether an engine is sent LoRA adapters alone.
        float32_head: whether logits are computed in float32.
        feature_cache: bytes of the GPU for the features of screenshots, used if the tower is frozen.
        prefix_cache: whether rollouts are taken to keep past turns' keys and values whatever memory that takes.
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
    max_rows: int
    max_batch_tokens: int
    max_prompt_tokens: int
    max_new_tokens: int
    element: int
    train_vision: bool
    rank: int
    tune: Literal["full", "lora"] | None
    image_cache_gb: float
    image_threads: int
    playing: Desktops
    iterations: int
    evaluations: Evaluations
    adapters_alone: bool
    engine_cache: int | None = None
    engine_sleeps: bool = False
    engine_elsewhere: bool = False
    engine_workers: int = 1
    whole_gradients: bool = False
    base_copies: tuple[bool, bool] = (False, False)
    float32_head: bool = False
    feature_cache: int = 0
    prefix_cache: bool = False

    @property
    def cached_token(self) -> int:
        """Bytes of a token's keys and values on each GPU that samples."""
        return kv_bytes(self.model.text, self.element, self.engine_workers)


def make_plan(request: PlanRequest) -> dict[str, Any]:
    """The plan, with the keys of the dict below.

    Bytes, seconds and floating-point operations are plain numbers. FLOPs are of the best choice, or, if none fits, of
    the first one; ``seconds`` and ``run`` are None then. ``window_bytes`` are those of the keys and values of one
    prompt and response of the maximum length, on each of an engine's GPUs; ``prefixes_fit`` says whether its cache
    holds the turns of all desktops. ``cpu_bytes`` are the largest sizes of caches of screenshots in this machine's
    memory.

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
            engine_cache=None if request.engine_elsewhere else request.engine_cache,
            float32_head=request.float32_head,
            feature_cache=request.feature_cache,
            engine_sleeps=request.engine_sleeps,
            engine_workers=request.engine_workers,
            whole_gradients=request.whole_gradients and request.gpus > 1,
            base_copies=request.base_copies,
        )
        if request.tune is None or (recipe.training.rank > 0) == (request.tune == "lora")
    ]
    candidates = choices(request.model, device, request.grid, max(sequences), options)
    chosen = best(candidates)
    return {
        "parameters": _parameters(request),
        "tokens": _tokens(request),
        "flops_per_episode": _flops(request, chosen or candidates[0]),
        "gpu": {"name": request.gpu, "count": request.gpus, **asdict(device)},
        "kv_cache_bytes_per_token": kv_bytes(request.model.text, request.element),
        "choices": [_described(request, choice) for choice in candidates],
        "best": None if chosen is None else chosen.name,
        "window_bytes": (request.max_prompt_tokens + request.max_new_tokens) * request.cached_token,
        "engine_cache": request.engine_cache,
        "cpu_bytes": _cpu_bytes(request),
        **(
            {"seconds": None, "run": None, "prefixes_fit": None}
            if chosen is None
            else _rollouts_and_updates(request, chosen)
        ),
    }


def _cpu_bytes(request: PlanRequest) -> dict[str, int]:
    """Each rank prepares screenshots for its rows, and keeps pixels of its own; rank 0 those of an engine, too."""
    engine = request.engine_cache is not None
    return {
        "screenshots": request.gpus * int(request.image_cache_gb * 1e9),
        "engine_patches": sampling.ENGINE_PATCHES if engine and not request.engine_elsewhere else 0,
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


def _rollouts_and_updates(request: PlanRequest, choice: Choice) -> dict[str, Any]:
    """The entries ``seconds``, ``run`` and ``prefixes_fit`` of the plan."""
    how = _sampling(request, choice)
    prefixes = request.prefix_cache or sampling.prefixes_fit(request.episode, how)
    seconds = _seconds(request, choice, how, prefixes=prefixes)
    responses = request.work.episodes * request.episode.steps * request.episode.response
    speed = {"decoded_tokens_per_second": responses / seconds.decode}
    return {
        "seconds": {**asdict(seconds), "total": seconds.total, **speed},
        "run": _run(request, seconds),
        "prefixes_fit": prefixes,
    }


def _run(request: PlanRequest, seconds: Seconds) -> dict[str, float]:
    """The whole run's seconds, its evaluations' episodes, and the share of these of the training's seconds."""
    episodes = request.work.episodes
    run = whole_run(request.iterations, seconds.total, seconds.rollouts, episodes, request.evaluations)
    return {
        "iterations": request.iterations,
        **asdict(run),
        "total": run.total,
        "evaluation_episodes": request.evaluations.count(request.iterations),
        "evaluations_share": run.evaluations / run.training,
    }


def _sampling(request: PlanRequest, choice: Choice) -> Sampling:
    engine = request.engine_cache is not None
    patches = request.grid.patches * request.model.vision.patch_inputs * request.element
    longest = max(row.tokens for row in request.episode.rows())
    free = choice.rollouts * longest * request.cached_token
    return Sampling(
        desktops=min(request.desktops, request.work.episodes),
        max_rows=request.max_rows,
        max_batch_tokens=None if engine else request.max_batch_tokens,
        max_new_tokens=request.max_new_tokens,
        cached_token=request.cached_token,
        cache=free if request.engine_cache is None else request.engine_cache,
        keeps_prefixes=engine,
        step_seconds=0.0 if engine else sampling.SAMPLER_STEP,
        image_cache=sampling.cached_screenshots(request.grid, request.model.vision.patch, request.image_cache_gb),
        image_threads=request.image_threads,
        patch_cache=sampling.ENGINE_PATCHES // patches if engine else None,
    )


def _seconds(request: PlanRequest, choice: Choice, how: Sampling, *, prefixes: bool) -> Seconds:
    model, episode, work, training = request.model, request.episode, request.work, choice.recipe.training
    device = gpu(request.gpu)
    rate = request.mfu * device.flops  # of one GPU; with train.ranks rank 0 samples alone
    prefill = sampling.prefill_flops(model, episode, request.grid, prefixes=prefixes).total
    once = duration.episode_forward(model, episode, request.grid, training.rank).total
    update = once + duration.episode_backward(model, episode, request.grid, training).total
    base = duration.episode_forward(model, episode, request.grid).total
    if request.decode_speed is None:
        decode = sampling.decode_seconds(model, device, episode, work.episodes, how, request.element)
    else:
        decode = work.episodes * episode.steps * episode.response / request.decode_speed
    prompts = work.episodes * prefill / rate
    preparation = sampling.preparation_seconds(episode, request.grid, work.episodes, work.passes, how)
    engine = request.engine_cache is not None
    return Seconds(
        prefill=prompts,
        decode=decode,
        preparation=preparation,
        desktops=request.playing.added(work.episodes, episode.steps, prompts + decode + preparation),
        sync=_sync(request, training.rank) if engine else 0.0,
        old_log_probs=work.scored(request.gpus) * once / rate if work.old_log_probs else 0.0,
        base_log_probs=work.scored(1 if choice.recipe.base_copy else request.gpus) * base / rate
        if work.base_log_probs
        else 0.0,
        update=work.updates * work.trained(request.gpus) * update / rate,
    )


def _sync(request: PlanRequest, rank: int) -> float:
    """Seconds of a weight sync."""
    adapters = request.element * request.model.adapter_parameters(rank) if rank and request.adapters_alone else None
    return sync_seconds(request.element * request.model.parameters, adapters)
