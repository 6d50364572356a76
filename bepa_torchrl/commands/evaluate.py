"""``bepa eval``: plays a suite with a policy and writes a card; compares two evaluations; reads results of others."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bepa_torchrl.commands.arguments import add_settings, check_new
from bepa_torchrl.commands.experts.arguments import noting
from bepa_torchrl.commands.hosted_policy import add_hosted, check_not_hosted, counted, hosted_model, temperature_of
from bepa_torchrl.commands.web_evaluation import WEB, add_web, check_no_judge, evaluate_web

if TYPE_CHECKING:
    from bepa_torchrl.evaluation.every_eval_ever import Sample
    from bepa_torchrl.experiment.settings import Settings

_ABOUT = """Plays every task of a suite and keeps each episode in --out, with its screenshots; the same command goes on
with an evaluation that was interrupted. suite=NAME is one of the evaluation suites; without it the tasks are those of
the settings env.*. --policy-model plays a hosted model instead of a checkpoint. suite=online_mind2web plays in a
browser, and a judge scores what was played; with --trajectories it judges those of any agent. --card writes card.json,
card.md, card.html, and the record every_eval_ever.json."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser("eval", help="evaluate a policy; compare and read evaluations", description=_ABOUT)
    add_settings(parser)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="folder of the evaluation, or of the card")
    parser.add_argument("--card", action="store_true", help="write the card; without --out, print it")
    parser.add_argument("--passes", type=int, metavar="N", help="episodes per task (default: the suite's)")
    parser.add_argument(
        "--steps", type=int, metavar="N", help="step budget (default: env.max_steps; with --from: not known)"
    )
    parser.add_argument(
        "--temperature", type=float, metavar="T", help="sampling temperature (default: 0 for one pass, 1 for several)"
    )
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("A", "B"), help="folders of two evaluations")
    parser.add_argument(
        "--from", dest="source", metavar="FOLDER", help="results in OSWorld's layout instead of playing"
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="PATH",
        help="published files of a grounding suite or online_mind2web, unchanged",
    )
    parser.add_argument(
        "--machine-hash",
        metavar="TEXT",
        help="identity of the desktops' image or machine for the card (default: found out for local, container and vm)",
    )
    add_hosted(parser)
    add_web(parser)
    check = parser.add_mutually_exclusive_group()
    check.add_argument(
        "--oracle", dest="check", action="store_const", const="oracle", help="play each task's oracle: all must succeed"
    )
    check.add_argument(
        "--nothing", dest="check", action="store_const", const="nothing", help="end at once: no task may succeed"
    )
    parser.add_argument(
        "--osworld-layout", action="store_true", help="also write OSWorld's results folder (default: for its suites)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(program=evaluate_policy)


def evaluate_policy(options: argparse.Namespace) -> int:
    """Does what the options ask for; returns the exit code.

    Raises:
        ValueError, TaskError: bad input. DesktopError, OSError: infrastructure; what was played is kept.
    """
    name, overrides = _suite_of(options.overrides)
    grounding = name is not None and _is_grounding(name)
    plays = options.source is None and options.compare is None and not grounding
    if options.machine_hash is not None and (options.compare or grounding or name == "online_mind2web"):
        raise ValueError("--machine-hash identifies desktops that tasks were played on; leave it out")
    if not plays and (options.check is not None or options.osworld_layout):
        raise ValueError("--oracle, --nothing and --osworld-layout are for tasks that are played; leave them out")
    if options.compare is not None:
        if options.card or options.out is not None or options.source is not None:
            raise ValueError("--compare prints the comparison of two folders; leave --card, --out and --from out")
        check_not_hosted(options, "--compare")
        _check_unread(options, "--compare", options.overrides, "passes", "steps", "temperature", "data")
        return _compare(options)
    if options.source is not None:
        check_not_hosted(options, "--from")
        _check_unread(options, "--from", overrides if name is None else (), "passes", "temperature", "data")
        return _read(options, name, overrides)
    if options.check is not None:
        check_not_hosted(options, f"--{options.check}")
    if name == WEB:
        return _show(options, *evaluate_web(options, overrides), options.out)
    check_no_judge(options)
    if name is not None and grounding:
        return _ground(options, name, overrides)
    return _play(options, name, overrides)


def _check_unread(options: argparse.Namespace, what: str, settings: Sequence[str], *names: str) -> None:
    """Raises ValueError if an option of an evaluation that plays, a setting or one of a judge is given."""
    check_no_judge(options)
    given = [f"--{name}" for name in names if getattr(options, name) is not None]
    if unread := [*given, *settings]:
        raise ValueError(f"{unread[0]}: {what} plays nothing, and does not read it; leave it out")


def _is_grounding(name: str) -> bool:
    from bepa_torchrl.evaluation.grounding.files import SUITES

    return name in SUITES


def _ground(options: argparse.Namespace, name: str, overrides: list[str]) -> int:
    """Plays a grounding suite, and writes its card."""
    from bepa_torchrl.evaluation.grounding.files import SUITES
    from bepa_torchrl.experiment import preflight
    from bepa_torchrl.experiment.config import check, load_config

    settings, suite = load_config(overrides, config_dir=options.config_dir), SUITES[name]
    if options.passes not in (None, 1):
        raise ValueError(f"--passes={options.passes}: suite={name} is asked once, at --temperature 0; leave it out")
    if options.data is None or options.out is None:
        raise ValueError(f"suite={name} requires --data FOLDER, its published files, and --out FOLDER")
    if not options.out.is_dir():
        check_new(options.out, "--out")
    items = suite.read(options.data)
    temperature = temperature_of(options, 0.0)
    hosted = hosted_model(options, overrides, settings, temperature)
    check(settings, () if hosted is not None else (preflight.checkpoint,))
    from rich.console import Console  # large packages, after what can be checked without them

    from bepa_torchrl.evaluation.grounding.scores import grounding_card
    from bepa_torchrl.evaluation.grounding.text import html, markdown
    from bepa_torchrl.experiment.grounding_run import ANSWERS, play_grounding
    from bepa_torchrl.monitoring.stage_progress import ConsoleProgress
    from osworld_gym.atomic import write_text

    with noting(options), counted(hosted), ConsoleProgress(Console(stderr=True)) as progress:
        scored, facts = play_grounding(
            settings,
            suite,
            items,
            options.out,
            name=name,
            digest=suite.digest(options.data),
            temperature=temperature,
            progress=progress,
            hosted=hosted,
        )
    card = grounding_card(scored, facts)
    if options.card:
        write_text(options.out / "card.json", json.dumps(card, indent=1, ensure_ascii=False) + "\n")
        write_text(options.out / "card.md", markdown(card) + "\n")
        write_text(options.out / "card.html", html(card))
        from bepa_torchrl.experiment.evaluation_samples import answer_samples

        _write_record(options.out, card, answer_samples(items, options.out / ANSWERS))
    print(json.dumps(card, ensure_ascii=False) if options.json else markdown(card))
    return 0 if card["score"] is not None else 3


def _suite_of(overrides: list[str]) -> tuple[str | None, list[str]]:
    """The value of ``suite=``, and the other settings."""
    named = [each.removeprefix("suite=") for each in overrides if each.startswith("suite=")]
    if len(named) > 1:
        raise ValueError(f"suite= is given {len(named)} times; give it once")
    return (named[0] if named else None), [each for each in overrides if not each.startswith("suite=")]


def _settings(options: argparse.Namespace, name: str | None, overrides: list[str]) -> tuple[Settings, int]:
    """The settings of the evaluation, and its passes."""
    from bepa_torchrl.evaluation.suites import evaluation_suite
    from bepa_torchrl.experiment.config import load_config

    suite = None if name is None else evaluation_suite(name)
    passes = options.passes if options.passes is not None else (1 if suite is None else suite.passes)
    if passes < 1:
        raise ValueError(f"--passes: expected 1 or more, got {passes}")
    given = [] if suite is None else list(suite.overrides)
    steps = [] if options.steps is None else [f"env.max_steps={options.steps}"]
    return load_config([*given, *overrides, *steps], config_dir=options.config_dir), passes


def _play(options: argparse.Namespace, name: str | None, overrides: list[str]) -> int:
    from bepa_torchrl.experiment.config import check

    settings, passes = _settings(options, name, overrides)
    if options.data is not None:
        raise ValueError(f"--data is read with a grounding suite, or with suite={WEB}; leave it out")
    if options.out is not None and not options.out.is_dir():
        check_new(options.out, "--out")
    from bepa_torchrl.experiment.checks import COMMAND, HOSTED
    from bepa_torchrl.experiment.checks.tasks import tasks_of_provider
    from bepa_torchrl.experiment.tasks import make_tasks
    from osworld_gym.tasks.evaluation.judging import is_judged

    temperature = temperature_of(options, float(passes > 1))
    check(settings, COMMAND if options.policy_model is None else HOSTED)
    tasks = make_tasks(settings, every=True)
    if not settings.env.runnable:  # otherwise they are tasks without a result
        check(settings, (partial(tasks_of_provider, tasks=tasks),))
    if any(map(is_judged, tasks.train)):
        raise ValueError(
            f"env.suite={settings.env.suite}: a judge scores its tasks; play them with suite={WEB} --data FILE"
        )
    if options.out is None:
        raise ValueError("expected --out FOLDER, in which each episode is kept as soon as it is over; add it")
    hosted = hosted_model(options, overrides, settings, temperature)
    from rich.console import Console  # large packages, after what can be checked without them

    from bepa_torchrl.experiment.evaluation_run import play_evaluation
    from bepa_torchrl.experiment.machine_checks import MachineCheck, unexpected
    from bepa_torchrl.monitoring.stage_progress import ConsoleProgress

    machine_check = None if options.check is None else MachineCheck(options.check)
    with noting(options), counted(hosted), ConsoleProgress(Console(stderr=True)) as progress:
        outcomes, facts = play_evaluation(
            settings,
            tasks,
            options.out,
            name=name or settings.env.suite,
            passes=passes,
            temperature=temperature,
            progress=progress,
            check=machine_check,
            hosted=hosted,
            osworld_layout=options.osworld_layout or tasks.suite.name == "osworld",
            machine_hash=options.machine_hash,
        )
    code = _show(options, outcomes, facts, options.out)
    wrong = [] if machine_check is None else unexpected(machine_check, outcomes)
    if wrong:
        expected = "1" if machine_check is MachineCheck.oracle else "0"
        print(f"bepa eval: --{machine_check}: expected the score {expected} of: {', '.join(wrong)}", file=sys.stderr)
    return 3 if wrong else code


def _read(options: argparse.Namespace, name: str | None, overrides: list[str]) -> int:
    """The card of results that another agent's runner wrote."""
    from bepa_torchrl.evaluation.card import FOLDER_TASKS
    from bepa_torchrl.evaluation.osworld_results import read_results, result_folders
    from bepa_torchrl.experiment.tasks import list_facts, make_tasks
    from osworld_gym.desktops.identity import NOT_KNOWN

    if options.out is not None:
        check_new(options.out, "--out")
    if options.steps is not None and options.steps < 1:
        raise ValueError(f"--steps: expected 1 or more, got {options.steps}")
    suite, of_list = None, {}
    if name is not None:
        settings, _ = _settings(options, name, overrides)
        tasks = make_tasks(settings, every=True)
        suite = tasks.suite.of([*tasks.train, *tasks.held_out])
        of_list = list_facts(settings, tasks)
    outcomes = read_results(options.source, suite)
    longest = max(outcomes, key=lambda outcome: outcome.steps)
    if options.steps is not None and longest.steps > options.steps:
        raise ValueError(
            f"--steps {options.steps}: {longest.task} has {longest.steps} steps; give the budget of the runs that "
            f"{options.source} has, or leave --steps out"
        )
    facts: dict[str, Any] = {"suite": name or FOLDER_TASKS, **of_list, "policy": options.source}
    folders = result_folders(options.source)
    if len(folders) > 1:  # passes, or different agents: only who made them knows
        facts["folders"] = folders
    facts |= {"steps_budget": options.steps, "machine_hash": options.machine_hash or NOT_KNOWN}
    if suite is not None:
        facts |= {"digest": suite.digest, "edition": suite.fingerprint(suite.tasks)}
    if options.out is not None:
        from bepa_torchrl.evaluation.outcomes import write_outcomes

        options.out.mkdir(parents=True)
        write_outcomes(options.out, outcomes, facts)
    return _show(options, outcomes, facts, options.out)


def _show(options: argparse.Namespace, outcomes: list[Any], facts: Mapping[str, Any], out: Path | None) -> int:
    """Writes the card if it is asked for, and prints the score; exit code 3 if no task has a result."""
    from bepa_torchrl.evaluation.card import make_card
    from bepa_torchrl.evaluation.card_text import html, markdown
    from osworld_gym.atomic import write_text

    card = make_card(outcomes, facts)
    if options.card and out is not None:
        write_text(out / "card.json", json.dumps(card, indent=1, ensure_ascii=False) + "\n")
        write_text(out / "card.md", markdown(card) + "\n")
        write_text(out / "card.html", html(card))
        from bepa_torchrl.experiment.evaluation_samples import episode_samples

        _write_record(out, card, episode_samples(outcomes, out / "episodes.jsonl"))
    print(json.dumps(card, ensure_ascii=False) if options.json else markdown(card))
    return 0 if card["score"] is not None else 3


def _write_record(out: Path, card: Mapping[str, Any], samples: Iterable[Sample]) -> None:
    """The record of Every Eval Ever, and its rows."""
    from bepa_torchrl.evaluation.every_eval_ever import write_record

    write_record(out, card, samples, created=int(time.time()))


def _compare(options: argparse.Namespace) -> int:
    from bepa_torchrl.evaluation.comparison import compare, comparison_lines
    from bepa_torchrl.evaluation.outcomes import read_outcomes
    from osworld_gym.commands.output import printable

    (first, facts), (second, other_facts) = (read_outcomes(folder) for folder in options.compare)
    comparison = compare(first, second, (facts, other_facts))
    lines = map(printable, comparison_lines(comparison))
    print(json.dumps(comparison, ensure_ascii=False) if options.json else "\n".join(lines))
    return 0
