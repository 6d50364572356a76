"""The checks of a run's settings, in the order in which they are made. Imports no torch.

A check is a function of the settings that returns None, or what is wrong in one line: what was expected, what was
given, how to fix it. :func:`bepa_torchrl.experiment.config.check` makes an error of the first such line.

    SETTINGS       the settings alone; made by ``load_config``, before anything is read or written
    MACHINE        what a run requires from this machine; the cheapest first
    COMMAND        the same for the commands that torchrun may not start
    HOSTED         the same for a policy behind an endpoint, which has no checkpoint here
    DEVICES        what requires torch, after its import
    ROLLOUT_SIDE   what ``bepa rollouts`` requires
    tasks          ``task_checks()``: the settings and the tasks of the run
"""

from __future__ import annotations

from bepa_torchrl.experiment import preflight
from bepa_torchrl.experiment.checks.check import Check
from bepa_torchrl.experiment.checks.credentials import no_credentials
from bepa_torchrl.experiment.checks.distribution import (
    desktops_of_nodes,
    desktops_of_workers,
    engine_elsewhere,
    engine_loads_the_policy,
    engine_of_one_method,
    engine_while_rerolling,
    gpus_of_services,
    not_by_torchrun,
    one_engine,
    one_method_listens,
    ranks,
    ranks_on_ray,
    ranks_train_one_method,
    restarts,
    synchronous,
)
from bepa_torchrl.experiment.checks.methods import (
    fixed_by_preset,
    further_groups,
    group_size,
    injected_kept,
    injected_weight,
    kind_of_advantage,
    known_methods,
    longest_episode,
    old_log_probs,
    part_of_refresh,
    ratio_of_responses,
    terms_of_tokens,
)
from bepa_torchrl.experiment.checks.policy import (
    adapters,
    history,
    known_action_text,
    preset,
    sleeping_engine,
    token_budget,
    weight_transfer,
)
from bepa_torchrl.experiment.checks.unread import settings_are_read
from bepa_torchrl.experiment.gpus import engine_gpus

SETTINGS: tuple[Check, ...] = (
    no_credentials,
    known_methods,
    ratio_of_responses,
    terms_of_tokens,
    longest_episode,
    kind_of_advantage,
    fixed_by_preset,
    injected_weight,
    injected_kept,
    part_of_refresh,
    group_size,
    further_groups,
    token_budget,
    adapters,
    old_log_probs,
    known_action_text,
    preset,
    history,
    synchronous,
    one_method_listens,
    desktops_of_nodes,
    desktops_of_workers,
    one_engine,
    engine_while_rerolling,
    sleeping_engine,
    engine_elsewhere,
    engine_loads_the_policy,
    engine_of_one_method,
    weight_transfer,
    gpus_of_services,
    ranks,
    ranks_on_ray,
    ranks_train_one_method,
    restarts,
    settings_are_read,
)
MACHINE: tuple[Check, ...] = (
    preflight.extras,
    preflight.suite,
    preflight.judge,
    preflight.task_lists,
    preflight.checkpoint,
    preflight.engine,
    preflight.engine_cache,
    engine_gpus,
    preflight.cluster,
    preflight.desktop,
)
COMMAND: tuple[Check, ...] = (not_by_torchrun, *MACHINE)
HOSTED: tuple[Check, ...] = tuple(
    each
    for each in COMMAND
    if each not in (preflight.checkpoint, preflight.engine, preflight.engine_cache, engine_gpus)
)
DEVICES: tuple[Check, ...] = (preflight.gpus,)
#: the desktops, checkpoint and engine of a Ray cluster are on its nodes, and are checked there
ROLLOUT_SIDE: tuple[Check, ...] = (
    adapters,
    old_log_probs,
    desktops_of_workers,
    one_engine,
    engine_elsewhere,
    engine_loads_the_policy,
    weight_transfer,
    gpus_of_services,
    preflight.engine_cache,
    preflight.cluster,
    *(preflight.without_ray(each) for each in (preflight.engine, preflight.checkpoint, preflight.desktop)),
)
