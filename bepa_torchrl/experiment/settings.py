"""The settings of a run as typed, frozen dataclasses. The YAML files in ``configs/`` hold the default values.

:func:`bepa_torchrl.experiment.config.load_config` builds a :class:`Settings`; the setting ``train.max_tokens`` on the
command line is ``settings.train.max_tokens`` here. The names in the ``Literal`` types are the choices that the
components accept. This module imports neither torch nor Hydra.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from bepa_torchrl.experiment.bounds import Above, Count, NonNegativeFloat, Positive, PositiveFloat


@dataclass(frozen=True, slots=True)
class EnvSettings:
    """The desktops, the tasks, and when an episode ends.

    Args:
        provider: a name of :data:`osworld_gym.desktops.registry.PROVIDERS`.
        suite: a suite's name, or an OSWorld checkout's folder.
        options: keyword arguments of the provider's desktop class.
        desktops: desktops per training process.
        deadline: seconds for one call on a desktop (reset, step, verification).
        warm_pool: desktops kept ready in addition to ``desktops``, reset ahead of need; must be 0 for ``sim``.
        max_steps: steps until an episode is truncated.
        parse_errors: unparsable responses in a row that end an episode.
        call_user_tolerance: number of ``call_user()`` calls after which an episode ends.
        evaluators: whose metrics score a task: ``ours``, OSWorld's (``official``), or ``auto`` (ours where we have it).
        official_timing: whether to sleep where OSWorld's client sleeps; requires a longer ``deadline``.
        train_split: a split of the suite, a tag, or a list file ``{domain: [task id, ...]}`` ending in ``.json``.
        held_out_split: the same for evaluation only; None: no held-out tasks.
        runnable: whether to leave out tasks that cannot run on this machine and provider.
        train_limit: number of training tasks used, the first ones; None: all.
        held_out_limit: number of held-out tasks used, the first ones; None: all.
    """

    provider: str
    suite: str
    options: Mapping[str, Any]
    desktops: Positive
    deadline: PositiveFloat
    warm_pool: Count
    max_steps: Positive
    parse_errors: Positive
    call_user_tolerance: Positive
    evaluators: Literal["auto", "ours", "official"]
    official_timing: bool
    train_split: str
    held_out_split: str | None
    runnable: bool
    train_limit: Count | None
    held_out_limit: Count | None


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """LoRA adapters on the decoder (:mod:`bepa_torchrl.policies.transformers.lora`); requires the extra ``lora``.

    Args:
        rank: rank of the adapters, the only trained parameters then; None: full training, without adapters.
        alpha: the adapters' output is multiplied by ``alpha / rank``.
        targets: last parts of the names of the decoder's adapted linear layers.
        adapter: folder of saved adapters to start from, of the same rank, alpha and targets; None: the identity.
    """

    rank: Positive | None
    alpha: Positive
    targets: tuple[str, ...]
    adapter: str | None


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The inference engine of ``policy.rollout=vllm`` (docs/vllm.md).

    Args:
        kv_cache_gb: memory of its key-value cache, 10^9 bytes.
        max_restarts: maximum number of restarts after exits of its process, per process of the run.
        tolerance: maximum difference of its log-probs to the trainer's after a weight sync, nats; None: 1e-4 for
            float32, 5e-2 for half precision.
        timeout: seconds for its start, for a weight sync, and between two finished responses.
    """

    kv_cache_gb: PositiveFloat
    max_restarts: Count
    tolerance: PositiveFloat | None
    timeout: PositiveFloat


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """The checkpoint, how it is loaded, and how prompts and batches are formed.

    Args:
        checkpoint: ``tiny`` (shipped with the package), a folder, or a Hugging Face repository.
        dtype: torch dtype of the weights.
        device: torch device, for example ``cpu`` or ``cuda:0``.
        attn: attention implementation of transformers.
        preset: prompt preset of :func:`osworld_gym.uitars.prompt.build_messages`.
        history: the screenshots in the prompt: ``all``; ``evict_block``, k to 2k - 1, of which the oldest k are dropped
            at once; ``last_k``, the newest k, as OSWorld's agent. ``all`` is the cheapest to train, ``last_k`` the
            dearest (:mod:`osworld_gym.uitars.history`).
        history_images: k, the current screenshot included; None with ``all``.
        max_prompt_tokens: maximum tokens of a prompt; a longer one ends the episode.
        max_new_tokens: maximum tokens of a response.
        max_batch_tokens: maximum tokens of a forward pass, including padding.
        max_rows: maximum rows of a sampling batch.
        activation_checkpointing: whether an update recomputes activations in the backward pass instead of keeping them:
            about a third more time, a fraction of the memory, the same results.
        lora: LoRA adapters.
        rollout: what samples responses: ``transformers``, the policy in training; ``vllm``, an inference engine that
            gets its weights before each iteration, with the same tokens.
        engine: the inference engine; read with ``rollout=vllm`` only.
    """

    checkpoint: str
    dtype: Literal["float32", "bfloat16", "float16"]
    device: str
    attn: Literal["sdpa", "flash_attention_2"]
    preset: str
    history: Literal["all", "evict_block", "last_k"]
    history_images: Positive | None
    max_prompt_tokens: Positive
    max_new_tokens: Positive
    max_batch_tokens: Positive
    max_rows: Positive
    activation_checkpointing: bool
    lora: LoraSettings
    rollout: Literal["transformers", "vllm"]
    engine: EngineSettings


@dataclass(frozen=True, slots=True)
class AlgoSettings:
    """The method.

    Args:
        name: a key of :data:`bepa_torchrl.experiment.methods.ALGOS`.
        preset: LUFFY only: the paper's form, or that of LUFFY's ``released`` code (no standard deviation, no
            on-policy clip, ``sum_norm``, which requires ``loss.max_length``).
        gamma: LUFFY only: ``f(p) = p / (p + gamma)``.
    """

    name: str
    preset: Literal["paper", "released"]
    gamma: PositiveFloat


@dataclass(frozen=True, slots=True)
class CollectSettings:
    """Rollouts of one iteration.

    Args:
        groups: tasks per iteration.
        group_size: rollouts per task.
        temperature: sampling temperature.
        env_seed: ``group``: all rollouts of a group start from the same desktop seed; ``slot``: each has its own.
        retries: further attempts, on other desktops, for an episode whose desktop failed.
        mode: ``sync``: an iteration waits for its rollouts; ``async``: desktops go on while the policy is trained.
        max_staleness: of ``async``: iterations that may be trained between a group's start and its own training.
        order: of ``async``: groups are trained in the order of ``admission`` or of ``completion``.
    """

    groups: Positive
    group_size: Positive
    temperature: PositiveFloat
    env_seed: Literal["group", "slot"]
    retries: Count
    mode: Literal["sync", "async"]
    max_staleness: Count
    order: Literal["admission", "completion"]


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """Iterations, batches and checkpoints.

    Args:
        iterations: iterations of collection and training.
        inner_epochs: passes over the rows of an iteration.
        minibatch_groups: groups per optimiser step; None: all of the iteration.
        max_tokens: tokens (prompt and response, padding included, shared prefixes once) per forward and backward pass;
            at least ``policy.max_prompt_tokens`` + ``policy.max_new_tokens``. The results do not depend on it.
        old_log_probs: source of the old log-probs: ``injected`` uses the sampler's for on-policy rows and computes
            those of injected rows, ``all`` computes every row's. Those that the loss does not read are not computed:
            injected rows' in LUFFY and RL+SFT, and with ``all`` any row's if an iteration takes a single optimiser step
            (all ratios are 1).
        frozen: substrings of parameter names; matching parameters are not trained.
        save_every: iterations between checkpoints.
        keep: checkpoints kept, the newest ones.
    """

    iterations: Count
    inner_epochs: Positive
    minibatch_groups: Positive | None
    max_tokens: Positive
    old_log_probs: Literal["injected", "all"]
    frozen: tuple[str, ...]
    save_every: Positive
    keep: Positive


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """AdamW.

    Args:
        kind: ``adamw``; ``adamw_8bit`` has moments of 8 bits, 2 bytes per trained parameter instead of 8, and requires
            the extra ``adam8bit``. Half-precision weights have float32 masters with both.
        lr: learning rate.
        vision_lr: the vision tower's learning rate, in supervised fine-tuning too; None: that of the other parameters.
            ``train.frozen=[visual]`` freezes the tower.
        betas: decay rates of the two moments.
        weight_decay: decoupled weight decay.
        clip_norm: maximum gradient norm.
    """

    kind: Literal["adamw", "adamw_8bit"]
    lr: NonNegativeFloat
    vision_lr: NonNegativeFloat | None
    betas: tuple[float, float]
    weight_decay: NonNegativeFloat
    clip_norm: PositiveFloat


@dataclass(frozen=True, slots=True)
class LossSettings:
    """The surrogate and its aggregation (``docs/definitions.md``, losses and aggregation).

    Args:
        clip: lower and upper clip range of the ratio, as ``[1 - low, 1 + high]``.
        dual_clip: bound of the loss for negative advantages, above 1; None: off.
        aggregation: how row losses are normalised, see :func:`bepa_torchrl.functional.row_denominators`.
        unit: the unit of a row's length, tokens or steps.
        max_length: length of the longest possible episode in units; required by ``sum_norm``, otherwise None.
        rollout_correction: importance weights for the difference between the sampler's and the old log-probs, per token
            or per response; requires ``train.old_log_probs=all``.
        rollout_cap: upper bound of these weights.
    """

    clip: tuple[NonNegativeFloat, NonNegativeFloat]
    dual_clip: Annotated[float, Above(1)] | None
    aggregation: Literal["group", "token", "sequence", "sum_norm", "seq-mean-token-sum", "seq-mean-token-mean"]
    unit: Literal["token", "step"]
    max_length: Positive | None
    rollout_correction: Literal["off", "token", "sequence"]
    rollout_cap: PositiveFloat


@dataclass(frozen=True, slots=True)
class AdvantageSettings:
    """Group advantages.

    Args:
        std: rule for the standard deviation by which they are divided; ``none``: no division.
        eps: added to the standard deviation.
    """

    std: Literal["population", "bessel", "none"]
    eps: NonNegativeFloat


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """The cache of traces.

    Args:
        rule: which success of a group enters the cache; ``all``: each of them, in slot order.
        max_tasks: maximum number of tasks in the cache; None: unlimited.
    """

    rule: Literal["random", "shortest", "highest_logprob", "all"]
    max_tasks: Positive | None


@dataclass(frozen=True, slots=True)
class ExpertSettings:
    """Expert traces, plans and self-rollouts.

    Args:
        logs: sources of expert traces, the preferred first: ``agent_s2:FOLDER``, ``gui_owl:FOLDER``, or a folder of
            saved traces; empty: the tasks' own oracles are recorded.
        oracle_style: style of the actions and text of the tasks' oracles.
        plan_source: input of the plan, the raw trace or the converted one.
        selfroll_attempts: self-rollouts per task (LEVEL-1), until one succeeds.
        seed_from_converted: whether the converted trace seeds the cache where no self-rollout succeeded.
        max_leak: fraction of thoughts quoting the plan above which a self-rollout is rejected.
        pass_k: attempts of the base policy per task, which define the expert-only set.
    """

    logs: tuple[str, ...]
    oracle_style: Literal["expert", "native"]
    plan_source: Literal["raw", "converted"]
    selfroll_attempts: Positive
    seed_from_converted: bool
    max_leak: NonNegativeFloat
    pass_k: Positive


@dataclass(frozen=True, slots=True)
class SftSettings:
    """Supervised fine-tuning on traces.

    Args:
        epochs: passes over the rows.
        batch: rows per optimiser step.
        lr: learning rate.
        weight: weight of the cross-entropy in ``rl_sft``.
    """

    epochs: Positive
    batch: Positive
    lr: NonNegativeFloat
    weight: NonNegativeFloat


@dataclass(frozen=True, slots=True)
class EvalSettings:
    """Evaluations.

    Args:
        every: iterations between evaluations; 0: only at the end.
        episodes: sampled episodes per task in evaluations during training.
        final_episodes: sampled episodes per task at the end, in addition to one greedy; 0: no final evaluation.
        seed: seed of the evaluations' episodes.
    """

    every: Count
    episodes: Positive
    final_episodes: Count
    seed: int


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """What is recorded in ``episodes.jsonl``.

    Args:
        every: iterations between recorded ones; 0: none.
        images: whether screenshots are stored.
    """

    every: Count
    images: bool


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one method's run.

    Args:
        name: name of the run folder; None: ``<provider>-<algo>-<date>-<time>``.
        runs: parent folder of all runs.
        storage: folder or fsspec URL to which the run is uploaded, and from which ``resume`` restores it; None: none.
        storage_wait: seconds for the last upload at the end of the run.
        resume: whether to continue the run called ``name``.
        seed: seed of the task order, the desktops and the sampling.
        compare: methods trained next to ``algo``, from the same policy and seed.
        threads: torch threads of each training process.
        processes: maximum number of simultaneous training processes.
        env: desktops and tasks.
        policy: checkpoint, prompts and batches.
        algo: the method.
        collect: rollouts.
        train: iterations and checkpoints.
        optimizer: AdamW.
        loss: the surrogate.
        advantage: group advantages.
        cache: the cache of traces.
        expert: expert traces and self-rollouts.
        sft: supervised fine-tuning.
        eval: evaluations.
        record: what is recorded.
    """

    name: str | None
    runs: str
    storage: str | None
    storage_wait: PositiveFloat
    resume: bool
    seed: int
    compare: tuple[str, ...]
    threads: Positive
    processes: Positive
    env: EnvSettings
    policy: PolicySettings
    algo: AlgoSettings
    collect: CollectSettings
    train: TrainSettings
    optimizer: OptimizerSettings
    loss: LossSettings
    advantage: AdvantageSettings
    cache: CacheSettings
    expert: ExpertSettings
    sft: SftSettings
    eval: EvalSettings
    record: RecordSettings
