"""What is compared: each variant is a method with settings; all of them start from the same base policy and seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LENGTH = "train.iterations=40"  #: of the study's runs
#: settings of every run of the study
COMMON = (
    LENGTH,
    "eval.every=10",
    "eval.episodes=2",
    "eval.final_episodes=8",
    "record.every=0",
    "expert.pass_k=8",
)
SEEDS = (0, 1, 2, 3, 4)


@dataclass(frozen=True)
class Variant:
    """One column of the comparison.

    Args:
        name: the name of its result files.
        algo: the method, a key of :data:`bepa_torchrl.methods.METHODS`.
        about: what differs from the method's usual settings.
        settings: in addition to ``common`` and the method's tuned ones, which they override.
        preparation: settings that change what is prepared before training; variants with equal ones share it.
        continues: variant whose finished run of the same seed this one makes longer, if its folder is there; "", or
            without that folder: starts from the base policy.
        tuned_as: key of the search whose settings it takes (:mod:`recipes.study.tuning`); "": its method's.
        common: settings of every run of its study.
    """

    name: str
    algo: str
    about: str = ""
    settings: tuple[str, ...] = ()
    preparation: tuple[str, ...] = ()
    continues: str = ""
    tuned_as: str = ""
    common: tuple[str, ...] = COMMON

    @property
    def overrides(self) -> tuple[str, ...]:
        """All of its settings, without the tuned ones."""
        return (f"algo={self.algo}", *self.common, *self.preparation, *self.settings)


METHODS = (
    Variant("grpo", "grpo"),
    Variant("bepa", "bepa"),
    Variant("level1", "level1"),
    Variant("level2", "level2"),
    Variant("replacement", "replacement"),
    Variant("luffy", "luffy"),
    Variant("arpo", "arpo"),
    Variant("sft", "sft"),
    Variant("sft_self", "sft_self"),
    Variant("rl_sft", "rl_sft"),
    Variant("sft_rl", "sft_rl"),
    Variant(
        "grpo_16",
        "grpo",
        "16 rollouts per task: more sampling than LEVEL-1's self-rollouts cost",
        ("collect.group_size=16",),
    ),
    Variant(
        "bound",
        "bepa",
        "BEPA with more self-rollouts, up to 64 per task, so that nearly every task has a trace; no upper bound",
        preparation=("expert.selfroll_attempts=64",),
    ),
)
SENSITIVITY = (
    Variant("bepa_n4", "bepa", "4 rollouts per task", ("collect.group_size=4",)),
    Variant("bepa_n16", "bepa", "16 rollouts per task", ("collect.group_size=16",)),
    Variant("bepa_shortest", "bepa", "the shortest success enters the cache", ("cache.rule=shortest",)),
    Variant("bepa_likeliest", "bepa", "the likeliest success enters the cache", ("cache.rule=highest_logprob",)),
    Variant("bepa_tries4", "bepa", "up to 4 self-rollouts per task", preparation=("expert.selfroll_attempts=4",)),
    Variant("level1_tries4", "level1", "up to 4 self-rollouts per task", preparation=("expert.selfroll_attempts=4",)),
)
#: BEPA's learning rate and updates, as in ``replacement``, so that only the traces and their refresh differ
REFRESH = (
    Variant("level1_as_bepa", "level1", "LEVEL-1 with BEPA's learning rate and updates", tuned_as="bepa"),
    Variant("level2_as_bepa", "level2", "LEVEL-2 with BEPA's learning rate and updates", tuned_as="bepa"),
)
LONGER = ("train.iterations=150", "eval.every=25")
LONG = (
    Variant("bepa_long", "bepa", "150 iterations", LONGER, continues="bepa"),
    Variant(
        "level1_as_bepa_long",
        "level1",
        "150 iterations, with BEPA's rate and updates",
        LONGER,
        tuned_as="bepa",
        continues="level1_as_bepa",
    ),
    Variant("grpo_long", "grpo", "150 iterations", LONGER, continues="grpo"),
    Variant("level1_long", "level1", "150 iterations", LONGER, continues="level1"),
)
BEYOND = (
    Variant("bepa_reroll", "bepa", "LEVEL-1 again every 5 iterations, without a trace", ("expert.reroll_every=5",)),
    Variant("level1_reroll", "level1", "the same, static", ("expert.reroll_every=5",)),
    Variant(
        "bepa_reroll_stale",
        "bepa",
        "the same, and with a trace of 20 or more updates ago",
        ("expert.reroll_every=5", "expert.reroll_stale=20"),
    ),
    Variant(
        "bound_fresh",
        "bepa",
        "`bound`, and every 5 iterations up to 64 self-rollouts of each task whose trace is older than the policy",
        ("expert.reroll_every=5", "expert.reroll_stale=1"),
        preparation=("expert.selfroll_attempts=64",),
    ),
    Variant("bepa_need", "bepa", "injected advantages weighted by need", ("cache.injected_weight=need",)),
    Variant("bepa_k4", "bepa", "only groups with 4 successes refresh the cache", ("cache.min_successes=4",)),
    Variant(
        "bepa_budget",
        "bepa",
        "as many self-rollouts as bepa_tries4 at most, where they are needed",
        preparation=("expert.selfroll_budget=256",),
    ),
)


def _stale(bound: int, *settings: str, name: str = "", about: str = "") -> Variant:
    """BEPA with asynchronous rollouts; at a bound of 0 the results are those of ``bepa``, which need no run."""
    return Variant(
        name or f"bepa_stale{bound}",
        "bepa",
        about or f"asynchronous rollouts, staleness {bound} at most",
        ("collect.mode=async", f"collect.max_staleness={bound}", *settings),
    )


STALENESS = (
    _stale(1),
    _stale(2),
    _stale(4),
    _stale(
        4,
        "train.old_log_probs=all",
        "loss.rollout_correction=token",
        name="bepa_stale4_corrected",
        about="`bepa_stale4` with the trainer's own old log-probs and truncated importance weights, per token, cap 2",
    ),
)
ANCHOR = Variant("bepa_anchor", "bepa", "cross-entropy on own successes (`loss.anchor`)", tuned_as="bepa_anchor")
#: without a search: its self-rolls are prepared once for all trials, so that it has BEPA's settings
HANDOVER = Variant(
    "bepa_handover",
    "bepa",
    "self-rolls without the plan in the first step, trained on after it",
    preparation=("expert.handover=1", "expert.handover_loss=after"),
)
#: rules that are not in the paper, first with the values of their sources or documentation: BEPA's other settings,
#: and for ``prefix``, which injects nothing, GRPO's
FURTHER = (
    Variant("prefix", "prefix", "groups of unsolved tasks start within a self-rolled success", tuned_as="grpo"),
    Variant("bepa_distill", "bepa", "gated plan distillation, weight 0.01 and beta 5", ("loss.distill_weight=0.01",)),
    HANDOVER,
    Variant("bepa_kl", "bepa", "divergence from the base policy, weight 0.01", ("loss.kl_weight=0.01",)),
    Variant("bepa_entropy", "bepa", "entropy bonus, weight 0.01", ("loss.entropy_weight=0.01",)),
    Variant(
        "bepa_dynamic",
        "bepa",
        "dynamic sampling, up to 8 further groups; 27 iterations, which are at most as many rollouts",
        ("collect.dynamic=8", "train.iterations=27"),
    ),
    Variant("bepa_maxrl", "bepa", "MaxRL's advantages", ("advantage.kind=maxrl",)),
    Variant("bepa_leave_one_out", "bepa", "leave-one-out advantages", ("advantage.kind=leave_one_out",)),
    Variant(
        "bepa_sequence",
        "bepa",
        "GSPO's ratio with its clip",
        ("loss.ratio=sequence", "loss.clip=[0.0003,0.0004]"),
    ),
    ANCHOR,
)
_TRIES = "cache.reword_tries=8"  #: of a rewording: about as many responses as the rollouts have
#: two controls of the refresh: each brings in one of the two things that a newer success differs by
CONTROLS = (
    Variant(
        "bepa_wording",
        "bepa",
        "a success refreshes the words of the cached trace only: its actions stay, thoughts are the current policy's",
        ("cache.refresh=wording", _TRIES),
    ),
    Variant(
        "bepa_actions",
        "bepa",
        "a success refreshes the actions only: its thoughts are those of the policy with the plan, as LEVEL-1's were",
        ("cache.refresh=actions", _TRIES),
    ),
)
#: BEPA with one part of the gradient of groups with an injected trace: which of them teaches, and which forgets
INJECTED_PARTS = (
    Variant(
        "bepa_trace",
        "bepa",
        "failures beside an injected trace have advantage 0",
        ("cache.injected_kept=trace",),
        tuned_as="bepa",
    ),
    Variant(
        "bepa_failures",
        "bepa",
        "an injected trace has advantage 0, the failures beside it keep theirs",
        ("cache.injected_kept=failures",),
        tuned_as="bepa",
    ),
)
#: each of the two methods at the other's rate and updates: what of their difference is the rate's
RATES = (
    Variant("grpo_as_bepa", "grpo", "GRPO with BEPA's learning rate and updates", tuned_as="bepa"),
    Variant("bepa_as_grpo", "bepa", "BEPA with GRPO's learning rate and updates", tuned_as="grpo"),
)
#: the rules of :data:`FURTHER` with rates and weights of a search of their own; but for the anchor and for hand-overs
RULES_TUNED = (
    Variant("prefix_tuned", "prefix", "groups of unsolved tasks start within a self-rolled success"),
    Variant("bepa_distill_tuned", "bepa", "gated plan distillation, beta 5", tuned_as="bepa_distill"),
    Variant("bepa_kl_tuned", "bepa", "divergence from the base policy", tuned_as="bepa_kl"),
    Variant("bepa_entropy_tuned", "bepa", "entropy bonus", tuned_as="bepa_entropy"),
    Variant(
        "bepa_dynamic_tuned",
        "bepa",
        "dynamic sampling, up to 8 further groups; 27 iterations, which are at most as many rollouts",
        ("train.iterations=27",),
        tuned_as="bepa_dynamic",
    ),
    Variant("bepa_maxrl_tuned", "bepa", "MaxRL's advantages", tuned_as="bepa_maxrl"),
    Variant("bepa_leave_one_out_tuned", "bepa", "leave-one-out advantages", tuned_as="bepa_leave_one_out"),
    Variant("bepa_sequence_tuned", "bepa", "GSPO's ratio with its clip", tuned_as="bepa_sequence"),
)
SELF_THEN_RL = Variant("sft_self_rl", "sft_self_rl", "fine-tuning on the self-rolled traces, then GRPO")
SELF_THEN_RL_LONG = Variant("sft_self_rl_long", "sft_self_rl", "fine-tuning first, then 150 iterations of GRPO", LONGER)
ANCHOR_LONG = Variant(
    "bepa_anchor_long", "bepa", "150 iterations", LONGER, tuned_as="bepa_anchor", continues="bepa_anchor"
)
#: two controls of the anchor: the same rate without it, and what it does after fine-tuning
ANCHOR_CONTROLS = (
    Variant(
        "bepa_as_grpo_long",
        "bepa",
        "150 iterations, with GRPO's rate and updates, which are also those of `bepa_anchor_long`",
        LONGER,
        tuned_as="grpo",
        continues="bepa_as_grpo",
    ),
    Variant(
        "sft_self_rl_anchor_long",
        "sft_self_rl",
        "`sft_self_rl_long` with the anchor, of the weight that BEPA's search has chosen",
        (*LONGER, "loss.anchor=0.1"),
    ),
)
PARTS = {
    "methods": METHODS,
    "refresh": REFRESH,
    "sensitivity": SENSITIVITY,
    "long": LONG,
    "beyond": BEYOND,
    "staleness": STALENESS,
    "further": FURTHER,
}
_CORE = ("grpo", "bepa", "level1", "sft_self")
#: of the bed with free words, in the order in which they run
FREE_PARTS = {
    "core": (*(variant for variant in METHODS if variant.name in _CORE), REFRESH[0]),
    "controls": CONTROLS,
    "anchor": (ANCHOR,),
    "long": (*LONG, SELF_THEN_RL_LONG, ANCHOR_LONG, *ANCHOR_CONTROLS),
    "injected": INJECTED_PARTS,
    "rates": RATES,
    "others": (
        *(variant for variant in METHODS if variant.name not in (*_CORE, "grpo_16", "bound")),
        SELF_THEN_RL,
    ),
    "rules": (*RULES_TUNED, HANDOVER),
}
VARIANTS = {variant.name: variant for parts in (PARTS, FREE_PARTS) for part in parts.values() for variant in part}
_SELF_ROLLING = ("bepa", "level1", "sft_self", "sft_self_rl", "prefix")  #: methods that use LEVEL-1's traces


def counted_self_rollouts(variant: str, preparation: Mapping[str, float]) -> float:
    """LEVEL-1's rollouts, if the variant (or method) uses their traces, else 0: every run prepares them."""
    algo = VARIANTS[variant].algo if variant in VARIANTS else variant
    return preparation["self_roll_episodes"] if algo in _SELF_ROLLING else 0.0
