"""``reasons_against``: every reason why a task cannot run is found, and none for a runnable task."""

import json
from pathlib import Path

import pytest

from osworld_gym import cli
from osworld_gym.tasks.evaluation.official_pool import OfficialLocation
from osworld_gym.tasks.setup.file_cache import FileCache, gold_file
from osworld_gym.tasks.suites.osworld import requirements as runnable
from osworld_gym.tasks.suites.osworld.requirements import Machine, files_of, official_names, reasons_against
from osworld_gym.tasks.task import Task

EXACT = {
    "func": "exact_match",
    "result": {"type": "vm_command_line", "command": "true"},
    "expected": {"type": "rule", "rules": {"expected": ""}},
}
GOLD = {
    "func": "compare_text_file",
    "result": {"type": "vm_file", "path": "/a", "dest": "a"},
    "expected": {"type": "cloud_file", "path": "https://hub/a", "dest": "gold"},
}


class EveryProgram(Machine):
    """A machine with all programs except those in ``lacks``."""

    lacks: tuple[str, ...] = ()

    def has_package(self, name: str) -> bool:
        return name not in self.lacks

    def has(self, *programs: str) -> bool:
        return not set(programs) <= set(self.lacks)


def machine(tmp_path: Path, lacks=(), **options) -> Machine:
    made = EveryProgram(FileCache(tmp_path, offline=True, also=()), options.pop("official", None), **options)
    object.__setattr__(made, "lacks", tuple(lacks))
    return made


def task(config=(), evaluator=EXACT, **raw) -> Task:
    data = {"id": "t", "instruction": "i", "config": list(config), "evaluator": evaluator, "domain": "os", **raw}
    return Task.from_json(data)


def step(kind: str, **parameters) -> dict:
    return {"type": kind, "parameters": parameters}


def official(tmp_path: Path) -> OfficialLocation:
    for name, text in (
        ("metrics", "from .a import new_metric\n"),
        ("getters", "from .b import get_new, get_rule, other\n"),
    ):
        folder = tmp_path / "place" / "desktop_env" / "evaluators" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(text)
    return OfficialLocation(tmp_path / "place")


def test_a_runnable_task_has_no_reasons(tmp_path):
    assert reasons_against(task([step("open", path="/a")]), "local", machine(tmp_path)) == []


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (task([step("login", platform="x")]), "login: it needs an account on a web site, with its password"),
        (task([step("chrome_open_tabs", urls_to_open=["https://a.org"])]), "it needs the live web"),
        (task(proxy=True), "it needs the live web"),
        (task([step("dance")]), "unknown setup step dance"),
        (task(evaluator=GOLD), "1 of its files not in the cache (osworld-gym tasks fetch)"),
        (task(related_apps=["vs_code"]), "VS Code is not installed"),
        (task([step("launch", command=["socat", "x"])]), "socat is not installed"),
        (
            task(evaluator=EXACT | {"func": "new_metric"}),
            "new_metric requires OSWorld's evaluators (osworld-gym install-official)",
        ),
        (
            task(evaluator=EXACT | {"result": {"type": "new"}}),
            "exact_match of new requires OSWorld's evaluators (osworld-gym install-official)",
        ),
    ],
)
def test_each_reason(tmp_path, one, reason):
    assert reasons_against(one, "local", machine(tmp_path, lacks=["code", "socat"])) == [reason]


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("useradd -m charles", "useradd"),
        (["/bin/sh", "-c", "echo a:b | sudo chpasswd"], "chpasswd"),
        ("mkdir /home/test1", "/home/test1"),
        ("getent passwd charles", "passwd"),
        ("echo x | sudo tee -a /etc/hosts", "tee -a /etc"),
        ("echo x > /usr/share/x", "> /usr"),
        ("cp /usr/share/x ~/y && cat /etc/hosts", ""),  # reads only
        ("mkdir -p ~/a/etc /home/user/usr", ""),
        ("echo password | sudo -S mkdir ~/Desktop/a", ""),  # as the desktop's user
    ],
)
def test_what_needs_root(tmp_path, command, found):
    """As in task 5812b315, which creates a user whose home is outside the desktop's."""
    reasons = [f"root: a command has {found!r}"] if found else []
    before = task([step("execute", command=command, shell=True)])
    after = task(evaluator=EXACT | {"result": {"type": "vm_command_line", "command": command}})
    for one in (before, after):
        assert reasons_against(one, "local", machine(tmp_path)) == reasons
        assert reasons_against(one, "container", machine(tmp_path)) == reasons
        assert reasons_against(one, "vm", machine(tmp_path)) == []


SUDO = "echo {CLIENT_PASSWORD} | sudo -S"
WEB = "from the network"
PIP = f"its setup installs Python packages (PyMuPDF) {WEB}"
NO_EXPECT = "its setup installs the package expect, which this machine does not have"


@pytest.mark.parametrize(
    ("command", "reasons"),
    [
        (f"{SUDO} apt update -y && {SUDO} apt install jq -y", []),
        (
            f"{SUDO} apt-get install -y expect",
            [NO_EXPECT],
        ),
        (
            ["/bin/sh", "-c", "apt-get -y install jq expect"],
            [NO_EXPECT],
        ),
        ("pip install PyMuPDF", [PIP]),
        (
            "pip install /home/user/a.whl && pip install -q PyMuPDF",
            ["its setup installs Python packages (-q PyMuPDF) " + WEB],
        ),
        ("pip install -r /home/user/list.txt", ["its setup installs Python packages (-r /home/user/list.txt) " + WEB]),
        ("pip install https://hub/a.whl", ["its setup installs Python packages (https://hub/a.whl) " + WEB]),
        (["pip", "install", "/home/user/a.whl"], []),  # a file of the desktop
        ("pip3 install ./a.whl ~/b.tar.gz", []),
    ],
)
def test_packages_that_the_setup_installs(tmp_path, command, reasons):
    one = task([step("execute", command=command, shell=True)])
    assert reasons_against(one, "local", machine(tmp_path, lacks=["expect"])) == reasons
    assert reasons_against(one, "vm", machine(tmp_path, lacks=["expect"])) == []  # packages of a vm are unknown


@pytest.mark.parametrize(
    ("command", "offline", "online"),
    [
        ("pip install PyMuPDF", [PIP], ["its setup runs pip, which the image does not have"]),
        ("pip3 install /home/user/a.whl", *[["its setup runs pip3, which the image does not have"]] * 2),
        (f"{SUDO} apt-get install -y expect jq", [], []),  # in the image
        (f"{SUDO} apt install cowsay", *[["its setup installs the package cowsay, which the image does not have"]] * 2),
    ],
)
def test_packages_of_the_image_are_not_those_of_this_machine(tmp_path, command, offline, online):
    one = task([step("execute", command=command, shell=True)])
    for lacks in ([], ["pip", "pip3", "expect", "jq", "cowsay"]):
        assert reasons_against(one, "container", machine(tmp_path, lacks=lacks)) == offline
        assert reasons_against(one, "container", machine(tmp_path, lacks=lacks, network=True)) == online


def test_a_local_desktop_has_pip_only_if_this_machine_has(tmp_path):
    one = task([step("execute", command=["pip", "install", "/home/user/a.whl"])])
    reason = "its setup runs pip, which this machine does not have"
    assert reasons_against(one, "local", machine(tmp_path, lacks=["pip"])) == [reason]
    assert reasons_against(one, "local", machine(tmp_path, lacks=["pip"], network=True)) == [reason]


def test_the_table_of_known_issues_counts_everywhere(tmp_path, folder, capsys):
    stream = Task.from_json(task().to_json() | {"id": "bba3381f-b5eb-4439-bd9e-80c22218d5a7"})
    for provider in ("local", "container", "vm"):
        assert reasons_against(stream, provider, machine(tmp_path)) == ["network: it plays a stream"]
    assert reasons_against(stream, "local", machine(tmp_path, network=True)) == []
    free = Task.from_json(task().to_json() | {"id": "99146c54-4f37-4ab8-9327-5f3291665e1e"})
    (reason,) = reasons_against(free, "local", machine(tmp_path, network=True))
    assert reason.startswith("free reward: Chromium writes the setting")
    path = folder / "evaluation_examples" / "examples" / "vlc" / "stream.json"
    path.write_text(json.dumps(stream.to_json() | {"domain": "vlc"}))
    assert cli.main(["tasks", "list", "--suite", str(folder), "--provider", "vm"]) == 0
    assert "no: network: it plays a stream" in capsys.readouterr().out


def test_tabs_of_the_browser_itself_need_no_web(tmp_path):
    assert reasons_against(task([step("chrome_open_tabs", urls_to_open=["chrome://x"])]), "vm", machine(tmp_path)) == []
    web = task([step("chrome_open_tabs", urls_to_open=["https://a.org"])])
    assert reasons_against(web, "vm", machine(tmp_path, network=True)) == []


def test_applications_of_an_image_are_not_looked_for_here(tmp_path):
    here = machine(tmp_path, lacks=["code", "gimp"])
    assert reasons_against(task(related_apps=["vscode", "gimp"]), "vm", here) == []
    assert reasons_against(task(related_apps=["vs_code", "gimp"]), "container", here) == ["VS Code is not in the image"]


def test_a_file_in_the_cache_is_no_reason(tmp_path):
    assert files_of(task(evaluator=GOLD)) == [gold_file("t", "https://hub/a", "gold")]
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "gold").write_bytes(b"")
    assert reasons_against(task(evaluator=GOLD), "local", machine(tmp_path)) == []


def test_what_osworlds_evaluators_know(tmp_path):
    place = official(tmp_path)
    assert official_names(place.folder) == ({"new_metric", "infeasible"}, {"new", "rule"})
    here = machine(tmp_path, official=place)
    assert reasons_against(task(evaluator=EXACT | {"func": "new_metric", "result": {"type": "new"}}), "vm", here) == []
    newer = task(evaluator=EXACT | {"func": "newest", "result": {"type": "newer"}})
    assert reasons_against(newer, "vm", here) == [
        "newer, newest requires newer evaluators of OSWorld (set OSWORLD_ROOT)"
    ]


def test_a_metric_that_would_run_the_policys_files_is_a_reason(tmp_path):
    here = machine(tmp_path, official=official(tmp_path))
    runs = task(evaluator=EXACT | {"func": "check_python_file_by_test_suite"})
    assert reasons_against(runs, "vm", here) == [
        "check_python_file_by_test_suite would run the policy's Python files on this machine"
    ]


def test_the_simulated_desktop_and_the_others(tmp_path):
    here = machine(tmp_path)
    assert reasons_against(task(), "sim", here) == ["it is no task of the simulated desktop"]
    assert reasons_against(task([step("sim")]), "local", here) == ["it is a task of the simulated desktop"]
    assert reasons_against(task([step("sim")]), "sim", here) == []


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("OSWORLD_GYM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OSWORLD_GYM_OFFLINE", "1")
    monkeypatch.delenv("OSWORLD_ROOT", raising=False)
    for domain, one in (("os", task()), ("vlc", task(evaluator=GOLD))):
        path = tmp_path / "checkout" / "evaluation_examples" / "examples" / domain / f"{domain}.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(one.to_json() | {"id": domain, "domain": domain}))
    return tmp_path / "checkout"


def test_the_command_lists_tasks_with_the_reasons_against_them(folder, capsys):
    assert cli.main(["tasks", "list", "--suite", str(folder), "--provider", "vm"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "os\tos\tcan run",
        "vlc\tvlc\tno: 1 of its files not in the cache (osworld-gym tasks fetch)",
    ]
    assert cli.main(["tasks", "list", "--suite", str(folder), "--provider", "vm", "--runnable"]) == 0
    assert capsys.readouterr().out.splitlines() == lines[:1]
    assert cli.main(["tasks", "list", "--suite", str(folder), "--domain", "vlc", "--hashes"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert cli.main(["tasks", "list", "--suite", str(folder), "--domain", "chess"]) == 2
    assert "its domains: os, vlc" in capsys.readouterr().err


def test_the_command_fetches_or_names_what_is_missing(folder, capsys, tmp_path):
    assert cli.main(["tasks", "fetch", "--suite", str(folder)]) == 3
    said = capsys.readouterr()
    assert "requires https://hub/a" in said.err
    place = tmp_path / "home" / "cache" / "files" / "vlc" / "gold"
    assert f"fetch it to {place}" in said.err
    place.parent.mkdir(parents=True)
    place.write_bytes(b"x")
    assert cli.main(["tasks", "fetch", "--suite", str(folder)]) == 0
    assert "1 files were in" in capsys.readouterr().out


def test_the_command_for_official_tasks_requires_tasks_with_an_oracle(folder, capsys):
    assert cli.main(["tasks", "official", "--suite", str(folder)]) == 2
    assert "has none of the tasks that need no network" in capsys.readouterr().err


def test_every_program_is_looked_for_by_its_name():
    assert Machine(official=None).has("sh")
    assert not Machine(official=None).has("no-such-program")
    assert runnable.APPLICATIONS["vscode"] == ("VS Code", ("code",))
