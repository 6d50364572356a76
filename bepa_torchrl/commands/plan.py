"""``bepa plan``: tokens, FLOPs, memory and time of a run on given GPUs, by arithmetic; nothing is loaded."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bepa_torchrl.commands.arguments import add_settings

if TYPE_CHECKING:
    from bepa_torchrl.experiment.settings import Settings
    from bepa_torchrl.sizing.duration import Iteration
    from bepa_torchrl.sizing.known_models import ModelFiles
    from bepa_torchrl.sizing.plan import PlanRequest
    from bepa_torchrl.sizing.tokens import EpisodeShape
    from bepa_torchrl.sizing.whole_run import Evaluations

_HELP = "tokens, FLOPs, memory and time of a run on given GPUs, and what fits"
_RANK = 64  #: of LoRA adapters, if neither the settings nor the options have one
_PARTS = ("prefill", "decode", "preparation", "desktops", "sync", "old_log_probs", "base_log_probs", "update")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser("plan", help=_HELP, description=f"Prints {_HELP}. Loads no weights, needs no GPU.")
    add_settings(parser)
    parser.add_argument(
        "--gpu", default="h200", help="rtx_4090, l40s, a100_40, a100_80, h100, h200 or b200 (default: %(default)s)"
    )
    parser.add_argument("--gpus", type=int, default=1, help="their number (default: 1)")
    parser.add_argument("--screen", default="1920x1080", help="screenshots in pixels (default: %(default)s)")
    parser.add_argument("--prompt-tokens", type=int, help="tokens before the first screenshot (default: estimated)")
    parser.add_argument("--response-tokens", type=int, default=120, help="tokens of a response (default: %(default)s)")
    parser.add_argument("--tune", choices=("full", "lora"), help="only full training, or only LoRA adapters")
    parser.add_argument("--rank", type=int, help=f"rank of LoRA adapters (default: policy.lora.rank, or {_RANK})")
    parser.add_argument(
        "--mfu", type=float, default=0.4, help="model FLOPs utilisation, assumed (default: %(default)s)"
    )
    parser.add_argument(
        "--decode-speed", type=float, help="tokens per second of the GPU that samples (default: estimated)"
    )
    parser.add_argument(
        "--prefix-cache",
        action="store_true",
        help="assume that rollouts keep past turns' key-value cache, whatever memory that takes",
    )
    parser.add_argument(
        "--tasks",
        type=int,
        nargs=2,
        metavar=("TRAIN", "HELD_OUT"),
        default=(128, 241),
        help="numbers of tasks, for the evaluations (default: 128 241, the paper's)",
    )
    parser.add_argument(
        "--reset-seconds",
        type=float,
        default=60.0,
        help="seconds of a desktop between two episodes, assumed (default: 60)",
    )
    parser.add_argument(
        "--step-seconds",
        type=float,
        default=3.0,
        help="seconds of a desktop between two responses, assumed (default: 3)",
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.set_defaults(program=plan)


def plan(options: argparse.Namespace) -> int:
    """Prints the plan; returns 0 whether or not a recipe fits.

    Raises:
        ValueError: an unknown model or GPU, or an option out of range.
    """
    from bepa_torchrl.experiment.config import load_config
    from bepa_torchrl.sizing.plan import make_plan

    settings = load_config(options.overrides, config_dir=options.config_dir)
    if options.rank is None:
        options.rank = settings.policy.lora.rank or _RANK
    sizing = {"model": settings.policy.checkpoint, "mfu": options.mfu, **make_plan(_request(settings, options))}
    longest = _longest_prompt(settings)
    sizing["settings"] = _settings_to_choose(settings, sizing, options.rank, longest)
    limit = sizing["settings"].get("policy.max_prompt_tokens", longest)
    prompts = enumerate(sizing["tokens"]["prompts"], start=1)
    sizing["cut_at_step"] = next((step for step, prompt in prompts if prompt > limit), None)
    if options.json:
        print(json.dumps(sizing, indent=1))
        return 0
    for line in _lines(sizing):
        print(line)
    return 0


def _request(settings: Settings, options: argparse.Namespace) -> PlanRequest:
    """What is planned, from the settings and the command's options."""
    from bepa_torchrl.experiment.gpus import engine_has_own_gpus
    from bepa_torchrl.sizing.model import model_shape
    from bepa_torchrl.sizing.plan import PlanRequest
    from bepa_torchrl.sizing.tokens import image_grid
    from bepa_torchrl.sizing.whole_run import Desktops

    _check(options)
    files = _model_files(settings.policy.checkpoint)
    model = model_shape(files.config)
    grid = image_grid(model.vision, _screen(options.screen), min_pixels=files.min_pixels, max_pixels=files.max_pixels)
    policy, collect, train, engine = settings.policy, settings.collect, settings.train, settings.policy.engine
    vllm, desktops = policy.rollout == "vllm", settings.env.desktops
    if vllm and engine.sleep and options.gpus > 1:
        raise ValueError(
            f"policy.engine.sleep=true requires train.ranks=1, got --gpus {options.gpus}; set one of them otherwise"
        )
    overlapped = vllm or collect.mode == "async"
    return PlanRequest(
        model=model,
        grid=grid,
        episode=_episode(settings, options, image=grid.patches // model.vision.merge**2),
        work=_iteration(settings),
        gpu=options.gpu,
        gpus=options.gpus,
        mfu=options.mfu,
        decode_speed=options.decode_speed,
        desktops=desktops,
        max_rows=(engine.max_rows or max(desktops, policy.max_rows)) if vllm else policy.max_rows,
        max_batch_tokens=policy.max_batch_tokens,
        max_prompt_tokens=policy.max_prompt_tokens,
        max_new_tokens=policy.max_new_tokens,
        element=4 if policy.dtype == "float32" else 2,
        train_vision="visual" not in train.frozen,
        rank=options.rank,
        tune=options.tune,
        image_cache_gb=policy.image_cache_gb,
        image_threads=policy.image_threads,
        playing=Desktops(desktops, options.reset_seconds, options.step_seconds, overlapped=overlapped),
        iterations=train.iterations,
        evaluations=_evaluations(settings, *options.tasks),
        adapters_alone=engine.adapters != "merged" and collect.mode == "sync",
        engine_cache=int(engine.kv_cache_gb * 1e9) if vllm else None,
        engine_sleeps=engine.sleep,
        engine_elsewhere=engine_has_own_gpus(settings, options.gpus),
        engine_workers=max(1, int(engine.arguments.get("tensor_parallel_size", 1))) if vllm else 1,
        whole_gradients=train.gradient_sync == "step",
        base_copies=_base_copies(settings),
        float32_head=policy.head_dtype == "float32",
        feature_cache=int(policy.feature_cache_gb * 1e9),
        prefix_cache=options.prefix_cache,
    )


def _episode(settings: Settings, options: argparse.Namespace, *, image: int) -> EpisodeShape:
    """The tokens of an episode, whose screenshots have ``image`` of them."""
    from bepa_torchrl.sizing.tokens import EpisodeShape
    from osworld_gym.action_text import ACTION_TEXTS

    return EpisodeShape(
        steps=settings.env.max_steps,
        head=_head(settings) if options.prompt_tokens is None else options.prompt_tokens,
        image=image,
        response=options.response_tokens,
        history=settings.policy.history,
        images=settings.policy.history_images,
        repeated=ACTION_TEXTS[settings.policy.action_text].repeated,
    )


def _iteration(settings: Settings) -> Iteration:
    """The rollouts and updates of an iteration."""
    from bepa_torchrl.sizing.duration import Iteration

    collect, train = settings.collect, settings.train
    step_groups = min(train.minibatch_groups or collect.groups, collect.groups)
    single_step = train.inner_epochs == 1 and step_groups == collect.groups
    return Iteration(
        episodes=collect.groups * collect.group_size,
        updates=train.inner_epochs,
        old_log_probs=train.old_log_probs == "all" and not single_step,
        base_log_probs=settings.loss.kl_weight > 0,
        step_episodes=step_groups * collect.group_size,
    )


def _base_copies(settings: Settings) -> tuple[bool, bool]:
    """Whether the divergence takes a copy of the base policy: in full training, and with adapters.

    Adapters that start from others are not the base policy without them.
    """
    reads = settings.loss.kl_weight > 0
    return reads, reads and settings.policy.lora.adapter is not None


def _evaluations(settings: Settings, train: int, held_out: int) -> Evaluations:
    """The evaluations of a run with these numbers of tasks."""
    from bepa_torchrl.sizing.whole_run import Evaluations

    known = settings.expert.pass_k_file is not None
    return Evaluations(
        train=train,
        held_out=held_out if settings.env.held_out_split is not None else 0,
        pass_k=0 if known else settings.expert.pass_k,
        before=not known,
        every=settings.eval.every,
        episodes=settings.eval.episodes,
        final_episodes=settings.eval.final_episodes,
        greedy=settings.eval.greedy,
    )


def _longest_prompt(settings: Settings) -> int:
    """``policy.max_prompt_tokens``, or less if the model has fewer positions."""
    policy, positions = settings.policy, _model_files(settings.policy.checkpoint).positions
    asked = policy.max_prompt_tokens
    return asked if positions is None else min(asked, positions - policy.max_new_tokens)


def _settings_to_choose(
    settings: Settings, sizing: Mapping[str, Any], rank: int, longest: int
) -> dict[str, int | bool | str | None]:
    """Settings of the best choice; its token limits are such that a prompt and its response fit a micro-batch.

    ``longest`` is the longest prompt that settings and model allow. What the settings have and the choice has not is
    among them, too.
    """
    best = next((choice for choice in sizing["choices"] if choice["name"] == sizing["best"]), None)
    if best is None:
        return {}
    budget: int = best["max_tokens"]
    prompt = min(longest, budget - settings.policy.max_new_tokens)
    chosen: dict[str, int | bool | str | None] = {
        "policy.activation_checkpointing": best["checkpointing"],
        "train.max_tokens": budget,
        "policy.max_prompt_tokens": prompt,
    }
    adapters, count = best["name"].startswith("LoRA"), sizing["gpu"]["count"]
    if adapters or settings.policy.lora.rank is not None:
        chosen["policy.lora.rank"] = rank if adapters else None
    if "adamw_8bit" in (best["optimizer"], settings.optimizer.kind):
        chosen["optimizer.kind"] = best["optimizer"]
    if count > 1 or settings.train.ranks > 1:
        chosen["train.ranks"] = count
    return chosen


def _check(options: argparse.Namespace) -> None:
    for name in ("gpus", "prompt_tokens", "response_tokens", "rank", "decode_speed"):
        value = getattr(options, name)
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"--{name.replace('_', '-')}: expected a number above 0, got {value}")
    numbers = (*options.tasks, options.reset_seconds, options.step_seconds)
    if not all(0 <= number < math.inf for number in numbers):
        raise ValueError(f"--tasks, --reset-seconds, --step-seconds: expected numbers of at least 0, got {numbers}")
    if not 0 < options.mfu <= 1:
        raise ValueError(f"--mfu: expected a number above 0 and at most 1, got {options.mfu}")


def _screen(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)x(\d+)", text)
    if match is None:
        raise ValueError(f"--screen: expected WIDTHxHEIGHT in pixels, such as 1920x1080, got {text!r}")
    return int(match[1]), int(match[2])


def _model_files(checkpoint: str) -> ModelFiles:
    """The configuration of ``policy.checkpoint``: a shipped one, a folder, or a known repository."""
    from bepa_torchrl.checkpoints import checkpoint_folder
    from bepa_torchrl.sizing.known_models import folder_model, known_model

    folder = Path(checkpoint_folder(checkpoint)).expanduser()
    return folder_model(folder) if folder.is_dir() else known_model(checkpoint)


def _head(settings: Settings) -> int:
    """Estimated tokens of the preset's text and an instruction."""
    from bepa_torchrl.sizing.tokens import head_tokens
    from osworld_gym.action_text import ACTION_TEXTS

    return head_tokens(ACTION_TEXTS[settings.policy.action_text].head(settings.policy.preset))


def _lines(sizing: dict[str, Any]) -> Iterator[str]:
    """The plan as text."""
    tokens, counts, gpu = sizing["tokens"], sizing["parameters"], sizing["gpu"]
    yield f"{sizing['model']}: {counts['total']:,} parameters ({counts['vision']:,} of them in the vision tower)"
    yield (
        f"tokens: screenshot {tokens['screenshot']:,}, prompts {tokens['prompts'][0]:,} to {tokens['prompts'][-1]:,}, "
        f"episode of {len(tokens['prompts'])} steps {tokens['episode']:,} with {tokens['images']} images encoded "
        f"(row by row {tokens['episode_row_by_row']:,} with {tokens['images_row_by_row']})"
    )
    yield ""
    yield from _table("1e12 FLOPs per episode", sizing["flops_per_episode"], 1e12)
    yield ""
    title = f"GB on each of {gpu['count']} {gpu['name']} ({gpu['memory'] / 1e9:.0f} GB)"
    yield from _table(title, {choice["name"]: choice["bytes_per_gpu"] for choice in sizing["choices"]}, 1e9)
    yield ""
    for choice in sizing["choices"]:
        yield _verdict(choice)
    cpu = sizing["cpu_bytes"]
    yield (
        f"memory of the CPU for screenshots: up to {cpu['screenshots'] / 1e9:,.1f} GB prepared ones on "
        f"{gpu['count']} {'rank' if gpu['count'] == 1 else 'ranks'} (policy.image_cache_gb), "
        f"{cpu['engine_patches'] / 1e9:,.1f} GB an engine's patches"
    )
    yield ""
    yield from _conclusion(sizing)


def _table(title: str, rows: Mapping[str, Mapping[str, int]], unit: float) -> Iterator[str]:
    """Rows of numbers, in multiples of ``unit``, under the names of their columns."""
    columns = [name.replace("_", " ") for name in next(iter(rows.values()))]
    first = max(len(title), *(len(name) for name in rows))
    widths = [max(len(name), 8) for name in columns]
    yield title.ljust(first) + "".join(f"  {name:>{width}}" for name, width in zip(columns, widths, strict=True))
    for name, values in rows.items():
        cells = (f"  {value / unit:>{width},.1f}" for value, width in zip(values.values(), widths, strict=True))
        yield name.replace("_", " ").ljust(first) + "".join(cells)


def _verdict(choice: Mapping[str, Any]) -> str:
    fits = f"fits, train.max_tokens up to {choice['max_tokens']:,}" if choice["fits"] else "does not fit"
    return f"{choice['name']}: training {fits}; between updates {choice['rollouts_that_fit']} rollouts at once"


def _cut(sizing: Mapping[str, Any]) -> str:
    prompts, step = sizing["tokens"]["prompts"], sizing["cut_at_step"]
    return (
        f"episodes end at step {step} of {len(prompts)}, whose prompt of {prompts[step - 1]:,} tokens is longer than "
        "policy.max_prompt_tokens in the settings below: set fewer env.max_steps, fewer screenshots in the prompt "
        "(policy.history), or more of policy.max_prompt_tokens if memory and model allow it"
    )


def _conclusion(sizing: Mapping[str, Any]) -> Iterator[str]:
    cache, window = sizing["engine_cache"], sizing["window_bytes"]
    if cache is not None and cache < window:
        yield (
            f"vLLM will not start: a prompt and response of the maximum length need {window / 1e9:.1f} GB of key-value "
            f"cache, it has {cache / 1e9:g}; set policy.engine.kv_cache_gb={math.ceil(window / 1e9)} or more, or a "
            "smaller policy.max_prompt_tokens"
        )
    if sizing["best"] is None:
        if cache is not None and cache < window and any(choice["fits"] for choice in sizing["choices"]):
            return
        engine = any(choice["bytes_per_gpu"]["engine"] for choice in sizing["choices"])
        yield (
            "nothing fits: use more GPUs (--gpus), a smaller screen, fewer steps, or fewer images in the prompt"
            f"{', or an engine elsewhere (policy.engine.url)' if engine else ''}"
        )
        return
    seconds = sizing["seconds"]
    speed = seconds["decoded_tokens_per_second"]
    parts = ", ".join(f"{part.replace('_', ' ')} {seconds[part]:,.0f}" for part in _PARTS)
    yield f"choose: {sizing['best']}; {seconds['total']:,.0f} s per iteration ({parts})"
    run = sizing["run"]
    yield (
        f"run: {run['training'] / 3600:,.1f} h for {run['iterations']} iterations, "
        f"{run['evaluations'] / 3600:,.1f} h for {run['evaluation_episodes']:,} episodes of evaluations "
        f"({100 * run['evaluations_share']:.0f} % of the training)"
    )
    if sizing["cut_at_step"] is not None:
        yield _cut(sizing)
    yield f"settings: {' '.join(f'{key}={json.dumps(value)}' for key, value in sizing['settings'].items())}"
    sampler = "" if sizing["gpu"]["count"] == 1 else ", by one GPU that samples alone"
    yield f"assumed: MFU {sizing['mfu']:g}, {speed:,.0f} decoded tokens per second{sampler}, 10 % of the memory lost"
    if cache is not None and not sizing["prefixes_fit"]:
        yield (
            "the engine's cache does not hold the turns of all desktops, so that each prompt is computed from its "
            "start: a larger policy.engine.kv_cache_gb, or fewer env.desktops"
        )
