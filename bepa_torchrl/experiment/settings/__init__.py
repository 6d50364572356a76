"""The settings of a run as typed, frozen dataclasses: their names, defaults, bounds, choices and documentation.

``python -m bepa_torchrl.experiment.settings`` writes ``configs/train.yaml`` and ``docs/settings.md`` from them. A
setting without a default here has its value in the files of ``configs/env``, ``configs/policy`` and ``configs/algo``.
:func:`bepa_torchrl.experiment.config.load_config` builds a :class:`Settings`; the setting ``train.max_tokens`` on the
command line is ``settings.train.max_tokens`` here, and ``import`` is ``settings.import_``. This module imports neither
torch nor Hydra.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import ConfigDict, Field

from bepa_torchrl.experiment.settings.collection import ClusterSettings, CollectSettings, EvalSettings, RecordSettings
from bepa_torchrl.experiment.settings.desktops import EnvSettings
from bepa_torchrl.experiment.settings.judge import JudgeSettings
from bepa_torchrl.experiment.settings.kinds import Count, Positive, PositiveFloat, Text
from bepa_torchrl.experiment.settings.methods import (
    AdvantageSettings,
    AlgoSettings,
    CacheSettings,
    ExpertSettings,
    LossSettings,
    SftSettings,
)
from bepa_torchrl.experiment.settings.policy import EngineSettings, LoraSettings, PolicySettings
from bepa_torchrl.experiment.settings.training import OptimizerSettings, TrainSettings

__all__ = [
    "AdvantageSettings",
    "AlgoSettings",
    "CacheSettings",
    "ClusterSettings",
    "CollectSettings",
    "EngineSettings",
    "EnvSettings",
    "EvalSettings",
    "ExpertSettings",
    "JudgeSettings",
    "LoraSettings",
    "LossSettings",
    "OptimizerSettings",
    "PolicySettings",
    "RecordSettings",
    "Settings",
    "SftSettings",
    "TrainSettings",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of one method's run.

    Args:
        name: name of the run folder; None: ``<provider>-<algo>-<date>-<time>``.
        runs: parent folder of all runs.
        storage: folder or URL (s3://BUCKET/FOLDER, abfs://CONTAINER/FOLDER) to which the run is uploaded while it runs
            (docs/storage.md); None: none. ``resume`` restores the run from it.
        storage_wait: seconds for the last upload at the end of the run.
        import_: modules of the user's own that add providers, suites, metrics, methods, readers or action texts
            (docs/howto/index.md); every process of the run imports them.
        resume: whether to continue the run called ``name``.
        seed: seed of the task order, the desktops and the sampling.
        compare: methods trained next to ``algo``, from the same policy and seed; []: none.
        threads: torch threads of each training process.
        processes: maximum number of simultaneous training processes.
        restarts: how often ``bepa train`` goes on by itself from what is saved, the newest checkpoint, after its
            infrastructure has failed (exit code 3: a lost rank, engine, cluster or desktop), after 10 s, 20 s, … and at
            most 10 minutes. With ``cluster.trainer=ray`` all ranks are placed again. Not by torchrun, which has
            ``--max-restarts``.
        env: desktops and tasks.
        policy: checkpoint, prompts and batches.
        algo: the method.
        judge: scores tasks on web sites.
        collect: rollouts.
        cluster: where asynchronous rollouts run.
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

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid", coerce_numbers_to_str=True)  # of all sections

    name: Text | None = None
    runs: Text = "runs"
    storage: Text | None = None
    storage_wait: PositiveFloat = 600.0
    import_: Annotated[tuple[Text, ...], Field(alias="import")] = ()
    resume: bool = False
    seed: Count = 0
    compare: tuple[Text, ...] = ("grpo",)
    threads: Positive = 1
    processes: Positive = 2
    restarts: Count = 0
    env: EnvSettings
    policy: PolicySettings
    algo: AlgoSettings
    judge: JudgeSettings = field(default_factory=JudgeSettings)
    collect: CollectSettings = field(default_factory=CollectSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    loss: LossSettings = field(default_factory=LossSettings)
    advantage: AdvantageSettings = field(default_factory=AdvantageSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    expert: ExpertSettings = field(default_factory=ExpertSettings)
    sft: SftSettings = field(default_factory=SftSettings)
    eval: EvalSettings = field(default_factory=EvalSettings)
    record: RecordSettings = field(default_factory=RecordSettings)

    @property
    def old_policy_is_current(self) -> bool:
        """Whether the loss takes current log-probs as the old ones, in its one step per iteration: every ratio is 1."""
        train, groups = self.train, self.collect.groups
        one_step = train.inner_epochs == 1 and (train.minibatch_groups or groups) >= groups
        return one_step and train.old_log_probs == "all"
