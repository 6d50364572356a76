"""Registries: built-in names, names that a module adds, entry points; and modules that are imported by name."""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from installed import install

from osworld_gym.errors import ExtensionError
from osworld_gym.extensions import Registry, call_with_imports, import_modules

GROUP = "osworld_gym.test_functions"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def table() -> Registry:
    return Registry(GROUP, {"join": "os.path:join", "len": len}, expects="a function")


def test_a_built_in_name_is_imported_when_it_is_asked_for() -> None:
    functions = table()
    assert functions["join"]("a", "b") == "a/b"
    assert functions["len"] is len
    assert list(functions) == ["join", "len"]
    with pytest.raises(KeyError):
        functions["none"]


def test_a_module_adds_and_removes_a_name() -> None:
    functions = table()
    functions["mine"] = max
    assert "mine" in functions
    assert functions["mine"] is max
    del functions["mine"]
    assert "mine" not in functions


def test_a_built_in_name_is_replaced_on_purpose_only(site: Path) -> None:
    """The same object again, as of a module that is imported twice, is no error."""
    functions = table()
    message = f"'len' of {GROUP} is built in, as <built-in function len>; got <built-in function max>; give yours"
    with pytest.raises(ExtensionError, match=re.escape(message)):
        functions["len"] = max
    with pytest.raises(ExtensionError, match=r"'join' of .* is built in, as 'os\.path:join'; got 'os:sep'; give yours"):
        functions.update({"join": "os:sep"})
    functions["len"] = len
    functions["join"] = "os.path:join"
    functions["join"] = functions["join"]
    assert functions["len"] is len
    functions.replace("len", max)
    functions["len"] = max
    assert functions["len"] is max
    with pytest.raises(ExtensionError, match="expected a function, got 3"):
        functions.replace("join", 3)
    functions.replace("join", "os:none")
    with pytest.raises(ExtensionError, match=r"'join' of .*: cannot import os:none"):
        functions["join"]
    text = "from osworld_gym.tasks import METRICS\nMETRICS['file_contains'] = lambda result, rules: 1.0\n"
    (site / "module_of_a_taken_name.py").write_text(text)
    with pytest.raises(ExtensionError, match=r"^import: cannot import 'module_of_a.*'file_contains' of .*, line 2$"):
        import_modules(["module_of_a_taken_name"])


def test_an_entry_point_is_found_and_imported_only_when_asked_for(site: Path) -> None:
    install(site, "first-package", f"[{GROUP}]\nmine = first_package:mine\n", "def mine():\n    return 3\n")
    functions = table()
    assert sorted(functions) == ["join", "len", "mine"]
    assert len(functions) == 3
    assert "mine" in functions
    assert "first_package" not in sys.modules
    assert functions["mine"]() == 3
    assert functions["mine"] is functions["mine"]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("bad = second_package:none", "cannot import second_package:none (AttributeError: "),
        ("bad = no_such_module:f", "cannot import no_such_module:f (ModuleNotFoundError: "),
        ("bad = second_package:NUMBER", "expected a function, second_package:NUMBER is 3"),
    ],
)
def test_an_unusable_entry_point_names_its_distribution(site: Path, entry: str, message: str) -> None:
    install(site, "second-package", f"[{GROUP}]\n{entry}\n", "NUMBER = 3\n")
    origin = f"the distribution second-package has the entry point 'bad' of {GROUP}: "
    with pytest.raises(ExtensionError, match=re.escape(origin + message)):
        table()["bad"]


def test_an_entry_point_with_a_built_in_name_is_refused_where_entry_points_are_read(site: Path) -> None:
    install(site, "third-package", f"[{GROUP}]\nlen = third_package:length\n")
    functions = table()
    assert functions["len"] is len
    with pytest.raises(ExtensionError, match=r"the distribution third-package has the entry point 'len'.*built in"):
        functions["other"]
    with pytest.raises(ExtensionError, match="third-package"):
        sorted(functions)


def test_two_distributions_with_one_name_are_refused(site: Path) -> None:
    install(site, "fourth-package", f"[{GROUP}]\nmine = fourth_package:f\n")
    install(site, "fifth-package", f"[{GROUP}]\nmine = fifth_package:f\n")
    with pytest.raises(ExtensionError, match=r"(?=.*fourth-package)(?=.*fifth-package).*uninstall one of them"):
        table()["mine"]


def test_modules_of_the_current_folder_are_imported(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (site / "module_of_this_folder.py").write_text("VALUE = 5\n")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(site)])
    import_modules(["module_of_this_folder"])
    assert sys.modules["module_of_this_folder"].VALUE == 5
    assert sys.path[0] == str(site)


def test_a_module_that_cannot_be_imported_is_one_line(site: Path) -> None:
    (site / "module_that_fails.py").write_text("raise RuntimeError('wrong version')\n")
    with pytest.raises(ExtensionError, match=r"^import: cannot import 'no_such' \(ModuleNotFoundError: .*searched$"):
        import_modules(["no_such"])
    with pytest.raises(ExtensionError, match=r"'module_that_fails' \(RuntimeError: wrong version\)"):
        import_modules(["module_that_fails"])


def test_a_function_for_another_process_imports_there(site: Path) -> None:
    """What Ray's workers get: the module is imported by the call, not by unpickling."""
    (site / "module_of_a_worker.py").write_text("")
    function = pickle.loads(pickle.dumps(partial(call_with_imports, ("module_of_a_worker",), dict)))
    assert "module_of_a_worker" not in sys.modules
    assert function() == {}
    assert "module_of_a_worker" in sys.modules


def test_an_object_that_is_something_else_is_refused_where_it_is_added(site: Path) -> None:
    functions = table()
    with pytest.raises(ExtensionError, match=f"'mine' of {GROUP}: expected a function, got 3"):
        functions["mine"] = 3
    assert "mine" not in functions
    line = "from osworld_gym.desktops import PROVIDERS, SimDesktop\nPROVIDERS['wide'] = SimDesktop()\n"
    (site / "module_of_an_object.py").write_text(line)
    with pytest.raises(ExtensionError, match=r"expected a class that implements Desktop, got .*object\.py, line 2$"):
        import_modules(["module_of_an_object"])


@pytest.mark.parametrize(
    ("place", "message"),
    [("os:none", "cannot import os:none (AttributeError: "), ("os:name", "expected a function, got 'posix'")],
)
def test_an_unusable_location_is_one_line(place: str, message: str) -> None:
    functions = table()
    functions["mine"] = place
    with pytest.raises(ExtensionError, match=re.escape(message)):
        functions["mine"]


def test_the_line_of_an_error_in_a_module_is_named(site: Path) -> None:
    (site / "module_with_a_bug.py").write_text("import os\n\nos.environ['NO_SUCH_VARIABLE']\n")
    with pytest.raises(ExtensionError, match=r"\(KeyError: .*\) at .*module_with_a_bug\.py, line 3$"):
        import_modules(["module_with_a_bug"])
    with pytest.raises(ExtensionError, match=r"; write module_with_a_bug$"):
        import_modules(["module_with_a_bug.py"])
    with pytest.raises(ExtensionError, match=r"; write lib\.own$"):
        import_modules(["./lib/own.py"])
    with pytest.raises(ExtensionError, match=rf"; write own and have {site.parent} in PYTHONPATH$"):
        import_modules(["../own.py"])


def test_a_module_that_another_one_hides_is_refused(site: Path) -> None:
    for name in ("queue", "time"):  # of the standard library: imported long ago
        (site / f"{name}.py").write_text("raise RuntimeError('is not imported')\n")
        with pytest.raises(ExtensionError, match=rf"'{name}' is .* already, not {site / name}\.py; give that module"):
            import_modules([name])
