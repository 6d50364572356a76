"""README and docs: files that are named exist, commands parse, snippets of README run."""

import argparse
import re
import shlex
import sys
import types
from importlib import import_module
from importlib.util import find_spec
from pkgutil import resolve_name

import pytest
from repository import ROOT

from bepa_torchrl.experts import READERS
from bepa_torchrl.methods import METHODS
from osworld_gym.action_text import ACTION_TEXTS
from osworld_gym.cli import _parser as osworld_gym_parser
from osworld_gym.desktops import PROVIDERS
from osworld_gym.tasks import GETTERS, METRICS, SUITES

HISTORY = {"log.md"}  # a diary: it names what existed then
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.name not in HISTORY),
]
TOP = {path.name for path in ROOT.iterdir()} - {"runs", "build", "dist"}
WRITTEN = ("runs/", "build/")  # made by a command, not kept
#: groups of entry points, whose names look like modules
ENTRY_POINTS = {registry.group for registry in (PROVIDERS, SUITES, METRICS, GETTERS, ACTION_TEXTS, METHODS, READERS)}
CODE_BLOCK = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.S | re.M)


def prose_code(text):
    """What is between single backticks, outside of fenced blocks; line breaks within a paragraph are spaces."""
    paragraphs = re.split(r"\n\s*\n", CODE_BLOCK.sub("\n\n", text))
    return [" ".join(span.split()) for paragraph in paragraphs for span in re.findall(r"`([^`]+)`", paragraph)]


def named_files(text):
    """Words between backticks that are paths from the top of the repository, such as ``docs/history/log.md``."""
    words = (word.strip("()[],;:").rstrip("/").partition("::")[0] for span in prose_code(text) for word in span.split())
    return [word for word in words if word.partition("/")[0] in TOP and re.fullmatch(r"[\w.-]+(/[\w.-]+)+", word)]


def command_lines(text):
    """Shell lines: fenced blocks of shell, and blocks indented by four spaces; continued lines joined.

    Not those with their output (``console``), which tests/test_howto.py runs.
    """
    fenced = [body for _, language, body in CODE_BLOCK.findall(text) if language != "console"]
    indented = re.findall(r"^    \S(?:.*\\\n)*.*$", CODE_BLOCK.sub("", text), re.M)
    lines = "\n".join([*fenced, *indented]).replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines]


def commands(text):
    """Commands of ours in blocks and between backticks, as word lists without comments, ``sudo`` and variables."""
    found = []
    for line in [*command_lines(text), *prose_code(text)]:
        for part in re.split(r"\s(?:&&|\||>)\s", line):
            try:
                words = shlex.split(part, comments=True)
            except ValueError:
                continue
            while words and (words[0] == "sudo" or re.fullmatch(r"[A-Z_]+=\S*", words[0])):
                words = words[1:]
            if words:
                found.append(words)
    return found


@pytest.fixture(params=PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def page(request):
    return request.param


def test_files_that_are_named_exist(page):
    text = page.read_text(encoding="utf-8")
    missing = [name for name in named_files(text) if not name.startswith(WRITTEN) and not (ROOT / name).exists()]
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", CODE_BLOCK.sub("", text)):
        if "://" not in target and not (page.parent / target).exists():
            missing.append(target)
    assert missing == []


def test_objects_that_are_named_exist(page):
    """Dotted names of our packages between backticks; a module whose extra is not installed here is not checked."""
    missing = []
    for word in " ".join(prose_code(page.read_text(encoding="utf-8"))).split():
        name = re.match(r"(?:osworld_gym|bepa_torchrl|benchmarks)(?:\.\w+)+", word)
        if name and name[0] in ENTRY_POINTS:
            continue
        try:
            resolve_name(name[0] if name else "osworld_gym")
        except (ModuleNotFoundError, AttributeError):
            if not requires_another_package(name[0]):
                missing.append(word)
    assert missing == []


def requires_another_package(name):
    """Whether importing this object's module fails since a package other than ours is not installed."""
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        return error.name.split(".")[0] not in ("osworld_gym", "bepa_torchrl", "benchmarks")
    return False


def test_commands_parse(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    lanes = re.findall(r"^[A-Z]+=\((.*)\)", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.M)
    tiers = " ".join(lanes).split()
    wrong = []
    for words in commands(page.read_text(encoding="utf-8")):
        problem = ""
        if words[0] == "make" and len(words) > 1:
            problem = "" if all(word in targets for word in words[1:] if "=" not in word) else "no such target"
        elif words[0] == "osworld-gym":
            problem = parse_problem(osworld_gym_parser(), words[1:])
        elif words[0] == "bepa" or words[:3] == ["python", "-m", "bepa_torchrl"]:
            problem = bepa_problem(words[1:] if words[0] == "bepa" else words[3:])
        elif words[:2] == ["python", "-m"] and len(words) > 2:
            problem = module_problem(words[2])
        elif words[0] == "python" and len(words) > 1 and words[1].endswith(".py"):
            problem = "" if (ROOT / words[1]).is_file() else "no such file"
            if not problem and words[1].endswith("train_bepa.py"):
                problem = settings_problem(words[2:])
        elif words[0] == ".ci/run":
            problem = "" if set(words[1:]) <= {*tiers, "TIER"} else "no such tier"
        if problem:
            wrong.append(f"{' '.join(words)}: {problem}")
    assert wrong == []


def module_problem(name):
    if name in {"pip", "venv", "mkdocs"}:
        return ""
    found = find_spec(name)
    if found is None:
        return "no such module"
    return "" if found.submodule_search_locations is None or find_spec(f"{name}.__main__") else "not a program"


def parse_problem(parser, words):
    """What argparse objects to; a command's name alone is the command."""
    if not words or words[0].startswith("--"):
        return ""
    try:
        parser.parse_args([word.strip("[]") for word in words])  # [--option]: it may be left out
    except SystemExit as stop:
        return "does not parse" if stop.code else ""
    except argparse.ArgumentError as error:
        return str(error)
    return ""


def bepa_problem(words):
    from bepa_torchrl import cli

    if not words or words[0].startswith("--"):
        return ""
    if words[0] == "train":
        return settings_problem(words[1:])
    if len(words) == 1:
        choices = next(a.choices for a in cli._parser()._actions if isinstance(a, argparse._SubParsersAction))
        return "" if words[0] in choices else "no such command"
    return parse_problem(cli._parser(), words)


def settings_problem(words):
    """An override that the settings refuse; values that stand for the reader's own paths are accepted."""
    from bepa_torchrl.experiment.config import load_config

    try:
        load_config([word for word in words if "=" in word and "resume" not in word and "OSWORLD" not in word])
    except ValueError as error:
        return str(error)
    return ""


SHELL = re.compile(r"(?:bepa|osworld-gym|make|pip|python|\S+/(?:pip|python|uv)) ")


def test_brackets_of_shell_commands_are_quoted(page):
    """zsh refuses a word with [ ] that names no file."""
    lines = [line.partition(" # ")[0] for line in command_lines(page.read_text(encoding="utf-8"))]
    bare = [line for line in lines if SHELL.match(line) and re.search(r"\S\[", re.sub(r"'[^']*'|\"[^\"]*\"", "", line))]
    assert bare == []


def test_diagrams_fit_the_column_of_the_site(page):
    """A code block has room for 88 characters in a window of 1300 pixels."""
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if re.search("[─│└┌┐┘├┤┬]", line) and len(line.removeprefix("    ")) > 88] == []


def test_every_role_of_a_docstring_is_rendered_in_the_site():
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("mkdocs_roles", ROOT / "scripts" / "mkdocs_roles.py")
    hook = module_from_spec(spec)
    spec.loader.exec_module(hook)
    link = '<autoref optional identifier="a.b.C"><code>{}</code></autoref>'
    assert hook.rendered(":class:<code>~a.b.C</code>, :class:<code>a.b.C</code>, :meth:<code>close</code>") == (
        f"{link.format('C')}, {link.format('a.b.C')}, <code>close</code>"
    )
    sources = [path for package in ("bepa_torchrl", "osworld_gym") for path in (ROOT / package).rglob("*.py")]
    roles = [role for path in sources for role in re.findall(r":\w+:`[^`]+`", path.read_text(encoding="utf-8"))]
    html = [re.sub(r"`([^`]+)`", r"<code>\1</code>", role) for role in roles]
    assert len(roles) > 100
    assert [role for role in html if ":" in hook.rendered(role)] == []


def test_snippets_of_the_readme_run(tmp_path, monkeypatch):
    """Those of the how-to pages are files of tests/test_howto.py."""
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("readme")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    path = ROOT / "README.md"
    snippets = re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.S)
    assert snippets
    for snippet in snippets:
        exec(compile(snippet, str(path), "exec"), module.__dict__)


def test_files_are_found_in_spans_of_several_words_and_lines():
    text = (
        "Run `python -m pytest\ntests/no_such.py::test_it` or `docs/index.md`.\n\n`A=1 ./x (docs/gone.md)`, `and/or`\n"
    )
    assert named_files(text) == ["tests/no_such.py", "docs/index.md", "docs/gone.md"]
    assert named_files("```bash\ncat docs/gone.md\n```\n\n`a`\n\nodd ` one\n\n`docs/x.md`") == ["docs/x.md"]


def test_links_of_the_site_are_files_in_it():
    """As `make docs` requires, which the default tests do not run: no folders, no files outside of docs."""
    wrong = []
    for page in (ROOT / "docs").rglob("*.md"):
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", CODE_BLOCK.sub("", page.read_text(encoding="utf-8"))):
            file = (page.parent / target).resolve()
            if ":" not in target and not (file.is_file() and file.is_relative_to(ROOT / "docs")):
                wrong.append(f"{page.name}: {target}")
    assert wrong == []


def test_every_page_is_in_the_navigation_under_its_own_title():
    """A page without a title in the navigation has its first heading there."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:")[2]
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert pages == set(re.findall(r"^ +- ([\w/-]+\.md)$", navigation, re.M))
    titles = {page: title_of(page) for page in pages}
    assert sorted(page for page, title in titles.items() if not title) == []
    assert len(set(titles.values())) == len(titles)
    tables = re.findall(
        r"^\| \[([^\]]+)\]\(([\w/-]+\.md)\) \|", (ROOT / "docs" / "index.md").read_text(encoding="utf-8"), re.M
    )
    assert len(tables) > 15
    assert [(title, page) for title, page in tables if title != titles[page]] == []


def title_of(page):
    """The heading on the first line of a page, or ''."""
    line = (ROOT / "docs" / page).read_text(encoding="utf-8").partition("\n")[0]
    return line.removeprefix("# ") if line.startswith("# ") else ""


def test_the_page_of_the_command_line_is_that_of_the_programs():
    from scripts.make_cli_page import page as made

    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == made(), "run: python -m scripts.make_cli_page"


def test_the_readme_stays_short_and_begins_with_a_picture():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) < 1000
    assert re.search(r"!\[[^\]]+\]\((docs/images/\S+)\)", text.partition("## ")[0])


@pytest.mark.parametrize(
    ("line", "checked"),
    [
        ("osworld-gym tasks list --suiet sim", "does not parse"),
        ("bepa train algo=none", "algo"),
        ("bepa fly", "no such"),
    ],
)
def test_a_wrong_command_is_found(line, checked, capsys):
    words = shlex.split(line)
    problem = bepa_problem(words[1:]) if words[0] == "bepa" else parse_problem(osworld_gym_parser(), words[1:])
    capsys.readouterr()
    assert checked in problem
