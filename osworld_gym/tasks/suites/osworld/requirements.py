"""Requirements of official tasks: the reasons why a task cannot run on this machine with a given provider.

Used by ``tasks list``, ``tasks official`` and ``env=osworld``. No reason means that no obstacle is known. No desktop is
started for this.
"""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from osworld_gym.desktops.container.image import packages
from osworld_gym.desktops.guest_server.setup_steps import SETUP_STEPS
from osworld_gym.desktops.home_template.apt import missing
from osworld_gym.tasks.evaluation.check import INFEASIBLE
from osworld_gym.tasks.evaluation.getters import GETTERS, one_or_many
from osworld_gym.tasks.evaluation.judging import is_judged
from osworld_gym.tasks.evaluation.official_pool import OfficialLocation, OfficialNames, find_official
from osworld_gym.tasks.evaluation.sidecar.calling import RUNS_RESULTS
from osworld_gym.tasks.evaluation.verify import read_evaluator
from osworld_gym.tasks.providers import is_simulated
from osworld_gym.tasks.setup.file_cache import FileCache, TaskFile, gold_file, setup_file
from osworld_gym.tasks.setup.run import HOST_STEPS, IMPOSSIBLE
from osworld_gym.tasks.task import Task

#: application in related_apps or snapshot → (its title, programs of which one is required)
APPLICATIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "chrome": ("Chromium", ("google-chrome", "chromium", "chromium-browser")),
    "libreoffice": ("LibreOffice", ("soffice", "libreoffice")),
    "gimp": ("GIMP", ("gimp",)),
    "vlc": ("VLC", ("vlc",)),
    "thunderbird": ("Thunderbird", ("thunderbird",)),
    "vscode": ("VS Code", ("code",)),
    "picard": ("Picard", ("picard",)),
}
#: applications that our container image lacks (it is built from Debian packages)
NOT_IN_IMAGE = frozenset({"vscode", "picard"})
#: programs that setup steps run
PROGRAMS = ("socat", "nautilus", "gnome-terminal")
#: getters that open pages of the live web
LIVE_GETTERS = frozenset(
    {
        *("info_from_website", "page_info", "pdf_from_url", "gotoRecreationPage_and_get_html_content"),
        *("number_of_search_results", "active_tab_html_parse", "macys_product_url_parse"),
    }
)
ACCOUNT_GETTERS = frozenset({"googledrive_file"})


class Cause(StrEnum):
    """Why a task is in :data:`KNOWN_ISSUES`."""

    network = "network"  #: the instruction can only be followed on the live web
    evaluator = "evaluator"  #: the evaluator accepts an unsolved task
    free_reward = "free reward"  #: doing nothing scores 1
    root = "root"  #: it needs the rights of root, which no desktop of ours has; read from the task's commands


#: first eight characters of a task's id → why it cannot be run or scored here, as far as its file does not show it
KNOWN_ISSUES: dict[str, tuple[Cause, str]] = {
    "36037439": (Cause.network, "it opens a page of Google Scholar"),
    "3c8f201a": (Cause.network, "it downloads a picture"),
    "48c46dc7": (Cause.network, "it opens pages of the web"),
    "48d05431": (Cause.evaluator, "the evaluator looks for a line in .bashrc only; conda cannot be installed offline"),
    "68a25bd4": (Cause.network, "it downloads a paper"),
    "69acbb55": (Cause.network, "it installs Python packages"),
    "788b3701": (Cause.network, "it downloads a chapter from GitHub"),
    "7e287123": (Cause.network, "it collects figures from the web"),
    "873cafdd": (Cause.network, "it installs plug-ins from Chrome's store"),
    "94d95f96": (Cause.network, "it installs a program"),
    "99146c54": (Cause.free_reward, "Chromium writes the setting that the evaluator looks for by itself"),
    "a82b78bb": (Cause.network, "it looks up web pages of authors"),
    "aad10cd7": (Cause.network, "it saves the text of a web page"),
    "acb0f96b": (Cause.network, "it clones a repository"),
    "bba3381f": (Cause.network, "it plays a stream"),
    "c7c1e4c3": (Cause.network, "it looks up addresses on web pages"),
    "deec51c9": (Cause.network, "it looks up a list of papers"),
    "e1fc0df3": (Cause.network, "it installs an extension and Java"),
    "f8369178": (Cause.evaluator, "the evaluator reads a setting only; the theme cannot be installed offline"),
}
#: commands of accounts and services, folders of other users, and writing where only root may
_ROOT = re.compile(
    r"\b(?:useradd|adduser|usermod|userdel|groupadd|chpasswd|passwd|chown|mount|systemctl|visudo)\b"
    r"|/home/(?!user\b)\w+"
    r"|(?:\b(?:mkdir|touch|tee|rm)\s[^|;&]*|>\s*)(?<![\w.~])/(?:etc|usr|opt|root|srv)\b"
)
_APT = re.compile(r"apt(?:-get)?\s+(?:-\S+\s+)*install\s+([^&|;]+)")
_PIP = re.compile(r"(pip3?)\s+install\s+([^&|;]+)")


@dataclass(frozen=True)
class Machine:
    """The programs and files that this machine has. ``network``: whether desktops may reach the live web."""

    files: FileCache = field(default_factory=FileCache)
    official: OfficialLocation | None = field(default_factory=find_official)
    network: bool = False

    def has(self, *programs: str) -> bool:
        """Whether one of the programs is on the ``PATH``."""
        return any(shutil.which(program) for program in programs)

    def has_package(self, name: str) -> bool:
        """Whether the Debian package is installed; False without dpkg."""
        return shutil.which("dpkg-query") is not None and not missing([name])


def reasons_against(task: Task, provider: str, machine: Machine) -> list[str]:
    """The reasons why the task cannot run here with this provider, one phrase each; empty if none is known.

    Args:
        provider: ``sim``; ``local``, with this machine's applications; ``container``, with our image's; for other
            providers, applications are not checked.
    """
    if task.unsupported:
        return [f"it is not supported: {task.unsupported}"]
    if is_simulated(task) != (provider == "sim"):
        return [f"it is {'a' if is_simulated(task) else 'no'} task of the simulated desktop"]
    if provider == "sim":
        return []
    reasons = [*_steps(task), *_accounts(task), *_files(task, machine), *_evaluators(task, machine)]
    reasons += _known_issues(task, machine)
    if not machine.network:
        reasons += _web(task)
    if provider in ("local", "container"):
        reasons += _root(task)
    if provider == "local":
        reasons += _applications(task, machine)
        reasons += _packages(task, provider, machine)
    elif provider == "container":
        reasons += [f"{APPLICATIONS[kind][0]} is not in the image" for kind in _kinds(task) if kind in NOT_IN_IMAGE]
        reasons += _packages(task, provider, machine)
    return list(dict.fromkeys(reasons))


def files_of(task: Task) -> list[TaskFile]:
    """Every file that the task's steps and evaluator download; none for an unsupported task."""
    if task.unsupported:
        return []
    steps = [step for step in _all_steps(task) if step["type"] == "download"]
    files = [setup_file(task.id, file["url"], file["path"]) for step in steps for file in step["parameters"]["files"]]
    for config in _getters(task):
        if config["type"] == "cloud_file":
            files += [gold_file(task.id, url, dest) for url, dest in one_or_many(config)]
    return list(dict.fromkeys(files))


def _all_steps(task: Task) -> list[Mapping[str, Any]]:
    return [*task.config, *(task.evaluator.get("postconfig") or ())]


def _getters(task: Task) -> Iterator[Mapping[str, Any]]:
    for check in read_evaluator(task)[1]:
        yield check.result
        if check.expected is not None:
            yield check.expected


def _steps(task: Task) -> Iterator[str]:
    for step in _all_steps(task):
        if step["type"] not in {*SETUP_STEPS, *HOST_STEPS, *IMPOSSIBLE}:
            yield f"unknown setup step {step['type']}"


def _accounts(task: Task) -> Iterator[str]:
    for step in _all_steps(task):
        if step["type"] in IMPOSSIBLE:
            yield f"{step['type']}: {IMPOSSIBLE[step['type']]}"
    if any(config["type"] in ACCOUNT_GETTERS for config in _getters(task)):
        yield "its evaluator reads a Google account"


def _web(task: Task) -> Iterator[str]:
    urls = [url for step in task.config for url in (step.get("parameters") or {}).get("urls_to_open", ())]
    if task.raw.get("proxy") or any(str(url).startswith(("http://", "https://")) for url in urls):
        yield "it needs the live web"
    elif any(config["type"] in LIVE_GETTERS for config in _getters(task)):
        yield "its evaluator needs the live web"


def _files(task: Task, machine: Machine) -> Iterator[str]:
    missing = [task_file for task_file in files_of(task) if machine.files.find(task_file) is None]
    if missing:
        yield f"{len(missing)} of its files not in the cache (osworld-gym tasks fetch)"


def _evaluators(task: Task, machine: Machine) -> Iterator[str]:
    if is_judged(task):
        return
    nothing = OfficialNames(frozenset(), frozenset())
    metrics, getters = official_names(machine.official.folder) if machine.official else nothing
    for check in read_evaluator(task)[1]:
        if not check.unknown_to_us():
            continue
        if check.func in RUNS_RESULTS:
            yield f"{check.func} would run the policy's Python files on this machine"
            continue
        names = {check.result["type"]} | ({check.expected["type"]} if check.expected else set())
        if machine.official is None:
            lacks = (
                check.func if names <= set(GETTERS) else f"{check.func} of {', '.join(sorted(names - set(GETTERS)))}"
            )
            yield f"{lacks} requires OSWorld's evaluators (osworld-gym install-official)"
        elif check.func not in metrics or not names <= getters:
            unknown = ", ".join(sorted({check.func} - metrics | names - getters))
            yield f"{unknown} requires newer evaluators of OSWorld (set OSWORLD_ROOT)"


def _known_issues(task: Task, machine: Machine) -> Iterator[str]:
    cause, reason = KNOWN_ISSUES.get(task.id[:8], (None, ""))
    if cause is not None and not (cause is Cause.network and machine.network):
        yield f"{cause}: {reason}"


def _root(task: Task) -> Iterator[str]:
    """Reasons: commands of the task that only root could run; ``sudo`` alone runs one as the desktop's user."""
    steps = [step.get("parameters") or {} for step in _all_steps(task)]
    for fields in (*steps, *_getters(task)):
        match = _ROOT.search(_words(fields.get("command", "")))
        if match is not None:
            yield f"{Cause.root}: a command has {match[0].strip()!r}"


def _words(command: str | Sequence[str]) -> str:
    return command if isinstance(command, str) else " ".join(map(str, command))


def _packages(task: Task, provider: str, machine: Machine) -> Iterator[str]:
    """Packages that the steps install and the desktop lacks: only root could install Debian packages."""
    image, owner = provider == "container", "the image" if provider == "container" else "this machine"
    for step in _all_steps(task):
        text = _words((step.get("parameters") or {}).get("command", ""))
        names = [name for match in _APT.finditer(text) for name in match[1].split() if not name.startswith("-")]
        for name in names:
            if not (name in packages("full") if image else machine.has_package(name)):
                yield f"its setup installs the package {name}, which {owner} does not have"
        for program, arguments in _PIP.findall(text):
            if not machine.network and _from_network(arguments):
                yield f"its setup installs Python packages ({arguments.strip()}) from the network"
            elif image or not machine.has(program):  # the image has Python without pip
                yield f"its setup runs {program}, which {owner} does not have"


def _from_network(arguments: str) -> bool:
    """Whether ``pip install`` with these arguments downloads anything, as it does not for files of the desktop."""
    words = arguments.split()
    if any(word.startswith(("-r", "--requirement")) for word in words):
        return True
    names = [word for word in words if not word.startswith("-")]
    return any("://" in name or not name.startswith(("/", "./", "~")) for name in names)


def _kinds(task: Task) -> list[str]:
    """The task's applications, as keys of ``APPLICATIONS`` where it has them."""
    names = [str(name).lower().replace(" ", "_") for name in (*task.raw.get("related_apps", ()), task.domain)]
    alias = {"calc": "libreoffice", "writer": "libreoffice", "impress": "libreoffice", "browser": "chrome"}
    return [
        "libreoffice" if name.startswith("libreoffice") else alias.get(name, name.replace("vs_code", "vscode"))
        for name in names
    ]


def _applications(task: Task, machine: Machine) -> Iterator[str]:
    for kind in _kinds(task):
        title, programs = APPLICATIONS.get(kind, ("", ()))
        if programs and not machine.has(*programs):
            yield f"{title} is not installed"
    for step in _all_steps(task):
        command = (step.get("parameters") or {}).get("command", "")
        words = command.split() if isinstance(command, str) else command
        if words and words[0] in PROGRAMS and not machine.has(words[0]):
            yield f"{words[0]} is not installed"


def official_names(folder: Path) -> OfficialNames:
    """The metrics and getters of OSWorld's evaluators in ``folder``, read from source."""
    evaluators = folder / "desktop_env" / "evaluators"
    metrics = _exported(evaluators / "metrics" / "__init__.py")
    functions = _exported(evaluators / "getters" / "__init__.py")
    getters = {name.removeprefix("get_") for name in functions if name.startswith("get_")}
    return OfficialNames(metrics | {INFEASIBLE}, frozenset(getters))


def _exported(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    names = [
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    return frozenset(names)
