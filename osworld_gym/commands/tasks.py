"""``osworld-gym tasks list | show | fetch | check | official``: lists, shows, downloads and checks tasks."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from osworld_gym.commands.arguments import add_import, screen_size
from osworld_gym.commands.output import FAILED, INFRASTRUCTURE
from osworld_gym.desktops.home_template.find import find_template
from osworld_gym.desktops.registry import PROVIDERS, check_provider, make_desktop
from osworld_gym.errors import DesktopError, FailureReason, TaskError
from osworld_gym.tasks.checks import check_task
from osworld_gym.tasks.evaluation.official_pool import OfficialEvaluators
from osworld_gym.tasks.providers import check_tasks_of_provider
from osworld_gym.tasks.setup.file_cache import FileCache
from osworld_gym.tasks.suite import Suite
from osworld_gym.tasks.suites.osworld.requirements import KNOWN_ISSUES, Machine, files_of, reasons_against
from osworld_gym.tasks.suites.osworld.runs import HEAD, run_all, with_oracle
from osworld_gym.tasks.suites.registry import OSWORLD, SUITES, load_suite
from osworld_gym.tasks.task import FIX, Task
from osworld_gym.tasks.usable import lists_unsupported

Parser = argparse.ArgumentParser


def add(commands: argparse._SubParsersAction[Parser]) -> None:
    """Adds the command."""
    tasks = commands.add_parser("tasks", help="list, show, fetch and check tasks").add_subparsers(required=True)
    for name, command, text, more in (
        ("list", _list, "one line per task: id, domain, tags, instruction; or whether it can run here", _list_options),
        ("show", _show, "one task as JSON", _show_options),
        ("fetch", _fetch, "fill the cache with the files of the tasks, for machines without a network", _chosen),
        ("check", _check, "verifier 0 on the fresh desktop, 0 for doing nothing, 1 after the oracle", _check_options),
        (
            "official",
            _official,
            "OSWorld's tasks that need no network: 0 for doing nothing, 1 by oracle",
            _official_options,
        ),
    ):
        sub = tasks.add_parser(name, help=text, description=text)
        default = OSWORLD if name == "official" else "sim"
        names = f"{', '.join(SUITES.built_in)}, one of your own, or the folder of an OSWorld checkout"
        sub.add_argument("--suite", default=default, help=f"{names} (default: {default})")
        add_import(sub)
        sub.set_defaults(command=command)
        more(sub)


def _chosen(sub: Parser) -> None:
    sub.add_argument("--split", default="all", help="split of the suite (default: all)")
    sub.add_argument("--domain", help="only tasks of this domain")
    sub.add_argument("--tag", help="only tasks with this tag")


def _list_options(sub: Parser) -> None:
    _chosen(sub)
    sub.add_argument("--provider", help="report whether each task can run with it, or why not")
    sub.add_argument("--runnable", action="store_true", help="with --provider: only those that can")
    sub.add_argument("--network", action="store_true", help="with --provider: the desktops may reach the live web")
    sub.add_argument(
        "--unsupported", action="store_true", help="only those that this version does not support, with file and reason"
    )
    sub.add_argument("--hashes", action="store_true", help="print content hashes and the digest of the suite instead")


def _show_options(sub: Parser) -> None:
    sub.add_argument("task", help="task id, or the beginning of one")


def _official_options(sub: Parser) -> None:
    _chosen(sub)
    sub.add_argument("--provider", default="local", help="default: local")
    sub.add_argument("--task", action="append", help="an id, or the beginning of one; may be given again")
    sub.add_argument(
        "--screen", type=screen_size, default=(1920, 1080), metavar="WxH", help="pixels (default: OSWorld's 1920x1080)"
    )
    sub.add_argument("--seed", type=int, default=0, help="seed of the desktops (default: 0)")


def _check_options(sub: Parser) -> None:
    _chosen(sub)
    sub.add_argument("--provider", help="default: the suite's own")
    sub.add_argument("--seed", type=int, default=0, help="seed of the desktops (default: 0)")


def _list(arguments: argparse.Namespace) -> int:
    other = arguments.provider is not None or arguments.runnable or arguments.network
    if arguments.hashes and (other or arguments.unsupported):
        raise TaskError(
            "--hashes prints no word on whether tasks can run; leave --provider, --runnable, --network and "
            "--unsupported out"
        )
    if arguments.unsupported and other:
        raise TaskError("--unsupported is the same for all providers; leave --provider, --runnable and --network out")
    suite = load_suite(arguments.suite)
    tasks = _choose(suite, arguments)
    if arguments.unsupported:
        return _list_unsupported(tasks)
    if arguments.hashes:
        for task in tasks:
            print(f"{task.content_hash}\t{task.id}")
        print(f"{suite.digest}\tthe {len(suite.tasks)} tasks of {suite.name}")
        return 0
    if arguments.provider is None:
        if arguments.runnable or arguments.network:
            raise TaskError("--runnable and --network require --provider: what a task can run on")
        for task in tasks:
            print("\t".join((task.id, task.domain, ",".join(task.tags), " ".join(task.instruction.split()))))
        for line in _split_table(suite):
            print(line, file=sys.stderr)
        _supported(suite, tasks)
        return 0
    check_provider(arguments.provider)
    machine, count = Machine(network=arguments.network), 0
    for task in tasks:
        reasons = reasons_against(task, arguments.provider, machine)
        count += not reasons
        if not reasons or not arguments.runnable:
            print("\t".join((task.id, task.domain, "no: " + "; ".join(reasons) if reasons else "can run")))
    print(f"{count} of {len(tasks)} tasks can run with provider {arguments.provider}", file=sys.stderr)
    _supported(suite, tasks)
    return 0


def _list_unsupported(tasks: Sequence[Task]) -> int:
    found = [task for task in tasks if task.unsupported]
    for task in found:
        print("\t".join((task.id, task.domain, f"{task.source}: {task.unsupported}")))
    print(f"{len(found)} of {len(tasks)} tasks are not supported" + (f"; {FIX}" if found else ""), file=sys.stderr)
    return 0


def _supported(suite: Suite, tasks: Sequence[Task]) -> list[Task]:
    """The tasks without the unsupported ones, which are counted on standard error."""
    able = [task for task in tasks if not task.unsupported]
    if len(able) < len(tasks):
        said = f"{len(tasks) - len(able)} of {len(tasks)} tasks are not supported; {lists_unsupported(suite)} has why"
        print(f"osworld-gym: {said}", file=sys.stderr)
    return able


def _split_table(suite: Suite) -> list[str]:
    """Number of tasks by split, and how many of them the base policy knows; empty for a suite without such tags."""
    lines = [f"{'split':<12}{'known':>6}{'unknown':>9}"]
    for name, ids in suite.splits.items():
        counts = [sum(tag in suite.task(task_id).tags for task_id in ids) for tag in ("known", "unknown")]
        if not any(counts):
            return []
        lines.append(f"{name:<12}{counts[0]:>6}{counts[1]:>9}")
    return lines


def _show(arguments: argparse.Namespace) -> int:
    task = load_suite(arguments.suite).find(arguments.task)
    print(json.dumps(task.to_json(), indent=2, ensure_ascii=False))
    if task.unsupported:
        print(f"osworld-gym: this task is not supported: {task.source}: {task.unsupported}; {FIX}", file=sys.stderr)
    return 0


def _fetch(arguments: argparse.Namespace) -> int:
    cache, here, fetched, failed = FileCache(), 0, 0, 0
    suite = load_suite(arguments.suite)
    for task in _supported(suite, _choose(suite, arguments)):
        for task_file in files_of(task):
            if cache.find(task_file) is not None:
                here += 1
                continue
            try:
                print(cache.get(task_file))
                fetched += 1
            except (DesktopError, TaskError) as error:
                failed += 1
                print(f"osworld-gym: {error}", file=sys.stderr)
    print(f"{here} files were in {cache.root}, {fetched} fetched, {failed} missing")
    return INFRASTRUCTURE if failed else 0


def _check(arguments: argparse.Namespace) -> int:
    suite = load_suite(arguments.suite)
    tasks = _with_oracle(suite, _choose(suite, arguments))
    provider = arguments.provider or (suite.name if suite.name in PROVIDERS else None)
    if provider is None:
        raise TaskError(f"suite {suite.name!r} has no default provider; fix: name one with --provider")
    check_tasks_of_provider(suite.name, tasks, provider)
    failed = unchecked = 0
    with make_desktop(provider) as desktop:
        for task in tasks:
            try:
                task.check_supported()
                problems = check_task(desktop, task, arguments.seed)
            except TaskError as error:
                if not task.unsupported:
                    raise
                problems = [str(error)]
            except DesktopError as error:
                if error.reason is FailureReason.never_ready:
                    raise
                unchecked += 1
                print(f"osworld-gym: task {task.id!r} could not be checked: {error}", file=sys.stderr)
                continue
            failed += bool(problems)
            for problem in problems:
                print(f"{task.id}: {problem}")
    print(f"{len(tasks) - failed - unchecked} of {len(tasks)} tasks of {suite.name}/{arguments.split} are valid")
    return FAILED if failed else INFRASTRUCTURE if unchecked else 0


def _official(arguments: argparse.Namespace) -> int:
    suite = load_suite(arguments.suite)
    wanted = {suite.find(task).id for task in arguments.task or ()}
    chosen = _supported(suite, [task for task in _choose(suite, arguments) if not wanted or task.id in wanted])
    pairs = with_oracle(chosen)
    if not pairs:
        raise TaskError(f"suite {suite.name!r} has none of the tasks that need no network and that we can solve")
    if arguments.provider == "local" and find_template() is None:
        message = "official tasks require the applications' HOME; fix: osworld-gym install-desktop"
        raise DesktopError(FailureReason.never_ready, message)
    width, height = arguments.screen
    pool, unsound = OfficialEvaluators(), 0
    print(HEAD)
    with make_desktop(arguments.provider, width=width, height=height) as desktop:
        for outcome in run_all(desktop, [task for task, _ in pairs], pool, arguments.seed):
            unsound += not outcome.sound
            print(outcome.line(), flush=True)
    pool.close()
    machine = Machine()
    for task in chosen:
        if task.id[:8] in KNOWN_ISSUES:
            reasons = "; ".join(reasons_against(task, arguments.provider, machine))
            print(f"{task.id[:8]} {task.domain:20} left out: {reasons}")
    print(f"{len(pairs) - unsound} of {len(pairs)} tasks score 0 for doing nothing and 1 by oracle")
    return FAILED if unsound else 0


def _choose(suite: Suite, arguments: argparse.Namespace) -> list[Task]:
    """The tasks of the split with the given domain and tag."""
    chosen = [
        task
        for task in suite.split(arguments.split)
        if arguments.domain in (None, task.domain) and (arguments.tag is None or arguments.tag in task.tags)
    ]
    if not chosen:
        domains = ", ".join(sorted({task.domain for task in suite.tasks}))
        tags = ", ".join(sorted({tag for task in suite.tasks for tag in task.tags})) or "none"
        raise TaskError(f"no task of suite {suite.name!r} is left; its domains: {domains}; its tags: {tags}")
    return chosen


def _with_oracle(suite: Suite, tasks: Sequence[Task]) -> list[Task]:
    solvable = [task for task in tasks if task.oracle is not None]
    if not solvable:
        raise TaskError(f"no task of suite {suite.name!r} has an oracle, so none can be checked")
    return solvable
