"""The training methods as data, selected by the key ``algo``; see the table in ``docs/definitions.md``. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from bepa_torchrl.rollout.injection import Injection
from osworld_gym.counts import check_count
from osworld_gym.errors import did_you_mean
from osworld_gym.extensions import Registry


class SeedSource(StrEnum):
    """The traces that fill the cache before the first iteration, or on which a method fine-tunes."""

    nothing = "nothing"
    converted = "converted"  #: D_conv: the expert's traces in the policy's format
    self_rolled = "self_rolled"  #: LEVEL-1, D_self: the base policy with the expert's plan


class LossKind(StrEnum):
    """The method's loss in ``bepa_torchrl.losses``."""

    grpo = "grpo"
    luffy = "luffy"
    rl_sft = "rl_sft"


@dataclass(frozen=True, slots=True)
class Method:
    """One method.

    Args:
        name: the key.
        about: one-line description.
        seed_source: initial content of the cache.
        refresh: whether the policy's successes enter the cache (LEVEL-2).
        injection: when a cached trace enters a group.
        loss: loss of the reinforcement phase.
        traces_per_task: maximum number of traces per task in the cache.
        cache_rule: update rule of the cache if the method fixes it (ARPO: ``all``); None: the setting's.
        sft: the traces on which supervised fine-tuning comes first, if any.
        rl: whether there is a reinforcement phase.
        prefix: whether groups of tasks that the policy has not solved start after the first steps of the cached trace.

    The sources, the injection and the loss may be given by their values: ``loss="luffy"``.

    Raises:
        ValueError: a value that none of these has, ``traces_per_task`` below 1, or ``prefix`` with another source than
            self-rolled traces, with a refresh or an injection.
    """

    name: str
    about: str
    seed_source: SeedSource = SeedSource.nothing
    refresh: bool = False
    injection: Injection = Injection.never
    loss: LossKind = LossKind.grpo
    traces_per_task: int = 1
    cache_rule: str | None = None
    sft: SeedSource = SeedSource.nothing
    rl: bool = True
    prefix: bool = False

    def __post_init__(self) -> None:
        for key, kind in _KINDS.items():
            self._convert(key, kind)
        check_count(f"method {self.name}: traces_per_task", self.traces_per_task)
        static = self.seed_source is SeedSource.self_rolled and not self.refresh
        if self.prefix and not (static and self.injection is Injection.never):
            raise ValueError(
                f"method {self.name}: prefix=True requires seed_source=self_rolled, refresh=False and injection=never, "
                f"got {self.seed_source}, {self.refresh} and {self.injection.value}"
            )

    def _convert(self, key: str, kind: type[StrEnum]) -> None:
        """Makes a value that is given as text a member of its enumeration: the trainer compares identities."""
        value = getattr(self, key)
        if value not in list(kind):
            raise ValueError(f"method {self.name}: {key}: expected one of {', '.join(kind)}; got {value!r}")
        object.__setattr__(self, key, kind(value))

    @property
    def needs_experts(self) -> bool:
        """Whether the method uses expert traces."""
        return self.sft is not SeedSource.nothing or self.seed_source is not SeedSource.nothing

    def on_policy_rollouts(self, group_size: int, *, has_trace: bool) -> int:
        """Rollouts to collect for a group: LUFFY keeps one slot free if there is a trace."""
        return group_size - (self.injection is Injection.always and has_trace)


#: the attributes of a method that have a few values
_KINDS: dict[str, type[StrEnum]] = {
    "seed_source": SeedSource,
    "injection": Injection,
    "loss": LossKind,
    "sft": SeedSource,
}

_METHODS = (
    Method(
        "bepa",
        "self-rolled seeds, refreshed by own successes, replace a failure when all failed",
        SeedSource.self_rolled,
        refresh=True,
        injection=Injection.on_failure,
    ),
    Method("grpo", "N on-policy rollouts, nothing else"),
    Method(
        "replacement",
        "converted expert traces, static, replace a failure when all failed",
        SeedSource.converted,
        injection=Injection.on_failure,
    ),
    Method(
        "luffy",
        "N-1 rollouts and one converted expert trace, always, with shaped probabilities",
        SeedSource.converted,
        injection=Injection.always,
        loss=LossKind.luffy,
    ),
    Method(
        "level1",
        "self-rolled seeds, static, replace a failure when all failed",
        SeedSource.self_rolled,
        injection=Injection.on_failure,
    ),
    Method(
        "prefix",
        "groups of an unsolved task start after the first steps of a self-rolled success, so that half of them succeed",
        SeedSource.self_rolled,
        prefix=True,
    ),
    Method(
        "level2",
        "converted expert traces, refreshed by own successes, replace a failure when all failed",
        SeedSource.converted,
        refresh=True,
        injection=Injection.on_failure,
    ),
    Method(
        "arpo",
        "no expert: the last 8 own successes of a task replace a failure when all failed",
        refresh=True,
        injection=Injection.on_failure,
        traces_per_task=8,
        cache_rule="all",
    ),
    Method("sft", "token cross-entropy on the converted expert traces", sft=SeedSource.converted, rl=False),
    Method(
        "sft_self",
        "token cross-entropy on the self-rolled traces (rejection-sampling fine-tuning)",
        sft=SeedSource.self_rolled,
        rl=False,
    ),
    Method(
        "rl_sft",
        "GRPO, plus cross-entropy on the converted traces of the batch's tasks",
        SeedSource.converted,
        injection=Injection.additional,
        loss=LossKind.rl_sft,
    ),
    Method("sft_rl", "supervised fine-tuning on the converted traces, then GRPO", sft=SeedSource.converted),
    Method("sft_self_rl", "supervised fine-tuning on the self-rolled traces, then GRPO", sft=SeedSource.self_rolled),
)

METHODS: Registry[Method] = Registry(
    "bepa_torchrl.methods",
    {method.name: method for method in _METHODS},
    expects="a Method",
    accepts=lambda value: isinstance(value, Method),
)


def method_named(name: str) -> Method:
    """The method of that name.

    Raises:
        ValueError: unknown name; the message suggests the nearest and lists all. Or the method has another name.
    """
    if name not in METHODS:
        raise ValueError(f"unknown algo {name!r}{did_you_mean(name, METHODS)}; known: {', '.join(METHODS)}")
    method = METHODS[name]
    if method.name != name:
        raise ValueError(f"the method {name!r} was added with name={method.name!r}; give both the same name")
    return method
