"""The settings of a run as typed, frozen dataclasses. The YAML files in ``configs/`` hold the default values.

:func:`bepa_torchrl.experiment.config.load_config` builds a :class:`Settings`; the setting ``train.max_tokens`` on the
command line is ``settings.train.max_tokens`` here. The names in the ``Literal`` types are the choices that the
components accept. A field that ends in ``_`` has its key without it. This module imports neither torch nor Hydra.
"""

from __future__ import annotations

from dataclasses import dataclass

from bepa_torchrl.experiment.settings.bounds import Count, Positive, PositiveFloat
from bepa_torchrl.experiment.settings.collection import ClusterSettings, CollectSettings, EvalSettings, RecordSettings
from bepa_torchrl.experiment.settings.desktops import EnvSettings
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
    "LoraSettings",
    "LossSettings",
    "OptimizerSettings",
    "PolicySettings",
    "RecordSettings",
    "Settings",
    "SftSettings",
    "TrainSettings",
]


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one method's run.

    Args:
        name: name of the run folder; None: ``<provider>-<algo>-<date>-<time>``.
        runs: parent folder of all runs.
        storage: folder or fsspec URL to which the run is uploaded, and from which ``resume`` restores it; None: none.
        storage_wait: seconds for the last upload at the end of the run.
        import_: the key ``import``: modules of the user's own that add providers, suites, metrics, methods, readers or
            action texts; every process of the run imports them (``docs/howto/index.md``).
        resume: whether to continue the run called ``name``.
        seed: seed of the task order, the desktops and the sampling.
        compare: methods trained next to ``algo``, from the same policy and seed.
        threads: torch threads of each training process.
        processes: maximum number of simultaneous training processes.
        env: desktops and tasks.
        policy: checkpoint, prompts and batches.
        algo: the method.
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

    name: str | None
    runs: str
    storage: str | None
    storage_wait: PositiveFloat
    import_: tuple[str, ...]
    resume: bool
    seed: Count
    compare: tuple[str, ...]
    threads: Positive
    processes: Positive
    env: EnvSettings
    policy: PolicySettings
    algo: AlgoSettings
    collect: CollectSettings
    cluster: ClusterSettings
    train: TrainSettings
    optimizer: OptimizerSettings
    loss: LossSettings
    advantage: AdvantageSettings
    cache: CacheSettings
    expert: ExpertSettings
    sft: SftSettings
    eval: EvalSettings
    record: RecordSettings
