"""The pool of OSWorld's evaluators, on a test double of ``desktop_env``: replies, errors, deadlines, exits."""

import importlib.util
import json
import re
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from file_desktop import FileDesktop
from metric_cases import packed

from osworld_gym import cli
from osworld_gym.errors import DesktopError, FailureReason, TaskError
from osworld_gym.tasks.evaluation import official_pool as official
from osworld_gym.tasks.evaluation.identity import evaluators_identity
from osworld_gym.tasks.evaluation.official_pool import OfficialEvaluators, OfficialLocation, find_official
from osworld_gym.tasks.evaluation.score import Evaluators
from osworld_gym.tasks.evaluation.sidecar.calling import Limits
from osworld_gym.tasks.evaluation.verify import verify
from osworld_gym.tasks.setup.file_cache import FileCache
from osworld_gym.tasks.task import Task
from osworld_gym.types import StopReason, Verdict

#: a double of OSWorld's modules: getters swallow errors, everything prints
CONTROLLER = """
import requests
class PythonController:
    def __init__(self, vm_ip, server_port):
        self.url = f"http://{vm_ip}:{server_port}"
    def execute_python_command(self, command):
        assert command.endswith("print(platform.machine())")
        return requests.post(self.url + "/execute").json()
"""
GETTERS = """
import os, requests
def get_rule(env, config): return config["rules"]
def get_answer(env, config):
    print("noise on stdout")
    try:
        return requests.get(env.controller.url + config["path"]).text
    except Exception:
        return None
def get_missing(env, config): raise FileNotFoundError("x")
def get_gold(env, config): return open(os.path.join(env.cache_dir, config["dest"])).read()
def get_cloud_file(env, config): return get_gold(env, config)
def get_folder(env, config): return [env.cache_dir, sorted(os.listdir(env.cache_dir)), os.getcwd()]
def get_file(env, config):
    answer = requests.post(env.controller.url + "/file", data={"file_path": config["path"]})
    path = os.path.join(env.cache_dir, "result")
    open(path, "wb").write(answer.content)
    return path
def get_chrome(env, config): return env.chromium_port
def get_machine(env, config): return env.vm_machine
def get_front(env, config):
    env.setup_controller._activate_window_setup(config["name"])
    return env.setup_controller.replayed if config.get("replay") else "on"
def get_recorded(env, config): return env.recorder
def get_playing(env, config): return requests.get(f"http://{env.vm_ip}:{env.vlc_port}/status").status_code
"""
METRICS = """
import os, time
def exact_match(result, rules): return 1.0 if result == rules["expected"] else 0.0
def same(result, expected, **options): return options.get("worth", 1.0) * (result == expected)
def sleep(result): time.sleep(result)
def die(result): os._exit(3)
def folder(result): return 1.0 if result[1] == ["ls.out"] and result[0] == result[2] else 0.0
def port(result): return result
def check_python_file_by_test_suite(result, expected, **options): return 1.0
def length(result, expected): return float(int(result) == int(expected))
def computes(result):
    while True: pass
def allocates(result): return float(len(bytearray(1 << 40)))
def reads(result): return float(len(open(result).read()))
def unpacks(result, expected):
    import shutil
    shutil.unpack_archive(result, os.path.dirname(result), "tar")
    return 1.0
def limit(result, rules): return float(float(result) < rules["limit"])
"""


@pytest.fixture
def place(tmp_path) -> OfficialLocation:
    root = tmp_path / "place"
    files = {
        "__init__.py": "",
        "controllers/__init__.py": "",
        "controllers/python.py": CONTROLLER,
        "evaluators/__init__.py": "",
        "evaluators/getters/__init__.py": GETTERS,
        "evaluators/metrics/__init__.py": METRICS,
    }
    for name, text in files.items():
        path = root / "desktop_env" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return OfficialLocation(root)


@pytest.fixture
def pool(place):
    evaluators = OfficialEvaluators(place)
    yield evaluators
    evaluators.close()


class Guest(BaseHTTPRequestHandler):
    """A guest server that requires the token; /broken returns a server error, /status a redirection."""

    def do_GET(self):
        self.server.paths.append(self.path)
        if self.path == "/status":
            self.send_response(302)
            self.send_header("Location", self.server.elsewhere)
            return self.end_headers()
        allowed = self.headers.get("Authorization") == "Bearer secret"
        self.send_response(401 if not allowed else 500 if self.path == "/broken" else 200)
        self.end_headers()
        self.wfile.write(b'{"AT": "<a/>", "truncated": true}' if self.path == "/accessibility" else b"on")

    def do_POST(self):
        self.server.posts.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.server.file)

    def log_message(self, *args): ...


@pytest.fixture
def guest():
    yield from serving()


@pytest.fixture
def other_server():
    yield from serving()


def serving():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Guest)
    server.paths, server.posts, server.file = [], [], b""
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def desktop_at(guest, token="secret", **ports) -> FileDesktop:
    return FileDesktop(server=(f"http://127.0.0.1:{guest.server_address[1]}", token), commands={"ls": "a\n"}, **ports)


def scored(pool, desktop, tmp_path, deadline=60.0, **evaluator) -> float:
    return judged(desktop, tmp_path, Evaluators("official", deadline=deadline, official=pool), **evaluator).score


def judged(desktop, tmp_path, evaluators, **evaluator) -> Verdict:
    task = Task(id="t", instruction="i", evaluator=evaluator)
    files = FileCache(tmp_path / "files", offline=True, also=())
    return verify(task, desktop, stop=StopReason.finished, evaluators=evaluators, files=files)


def expected(value) -> dict:
    return {"type": "rule", "rules": {"expected": value}}


ON = {"func": "exact_match", "result": {"type": "answer", "path": "/on"}, "expected": expected("on")}


def test_a_task_is_scored_with_the_token(pool, guest, tmp_path):
    assert scored(pool, desktop_at(guest), tmp_path, **ON) == 1.0
    assert scored(pool, desktop_at(guest), tmp_path, **(ON | {"expected": expected("off")})) == 0.0
    same = {
        "func": "same",
        "result": ON["result"],
        "expected": {"type": "rule", "rules": "on"},
        "options": {"worth": 0.25},
    }
    assert scored(pool, desktop_at(guest), tmp_path, **same) == 0.25


def test_a_missing_result_scores_zero(pool, guest, tmp_path):
    assert scored(pool, desktop_at(guest), tmp_path, **(ON | {"result": {"type": "missing"}})) == 0.0


@pytest.mark.parametrize(
    ("token", "path", "says"),
    [
        ("wrong", "/on", "status 401"),
        ("secret", "/broken", "status 500"),
        ("secret", "/accessibility", "the tree is incomplete"),
    ],
)
def test_a_broken_desktop_is_no_score(pool, guest, tmp_path, token, path, says):
    with pytest.raises(DesktopError, match=says) as caught:
        scored(pool, desktop_at(guest, token), tmp_path, **(ON | {"result": {"type": "answer", "path": path}}))
    assert caught.value.reason is FailureReason.evaluator_failed


def test_a_desktop_that_is_gone_is_no_score(pool, tmp_path):
    desktop = FileDesktop(server=("http://127.0.0.1:9", ""))
    with pytest.raises(DesktopError, match=r"GuestUnreachable.*Connection refused"):
        scored(pool, desktop, tmp_path, **ON)  # its getter returned None, which its metric would have scored 0


def test_each_evaluation_has_a_separate_folder(pool, guest, tmp_path):
    (tmp_path / "files" / "t").mkdir(parents=True)
    (tmp_path / "files" / "t" / "gold").write_bytes(b"on")
    cloud = {"type": "cloud_file", "path": "https://hub/gold", "dest": "gold"}
    gold = {"func": "same", "result": {"type": "rule", "rules": "on"}, "expected": cloud}
    assert scored(pool, desktop_at(guest), tmp_path, **gold) == 1.0
    keep = {"type": "command", "parameters": {"command": "ls", "stdout": "ls.out"}}
    kept = {"func": "folder", "result": {"type": "folder"}, "postconfig": [keep]}
    assert scored(pool, desktop_at(guest), tmp_path, **kept) == 1.0  # no file of the previous evaluation is left


def test_a_broken_result_scores_zero_and_a_broken_gold_file_is_no_score(pool, guest, tmp_path):
    (tmp_path / "files" / "t").mkdir(parents=True)
    for name, text in (("gold", "12"), ("torn", "twelve")):
        (tmp_path / "files" / "t" / name).write_text(text)

    def compared_with(name: str) -> float:
        cloud = {"type": "cloud_file", "path": f"https://hub/{name}", "dest": name}
        return scored(pool, desktop_at(guest), tmp_path, func="length", result=ON["result"], expected=cloud)

    assert compared_with("gold") == 0.0  # the result is "on", not a number
    with pytest.raises(DesktopError, match="invalid literal") as caught:
        compared_with("torn")
    assert caught.value.reason is FailureReason.evaluator_failed
    limit = {"func": "limit", "result": ON["result"]}
    assert scored(pool, desktop_at(guest), tmp_path, **limit, expected={"type": "rule", "rules": {"limit": 3}}) == 0.0
    number = {"func": "limit", "result": {"type": "rule", "rules": "2"}}
    with pytest.raises(DesktopError, match="rules lack the key 'limit'"):
        scored(pool, desktop_at(guest), tmp_path, **number, expected={"type": "rule", "rules": {"limits": 3}})


@pytest.mark.parametrize(
    ("func", "result", "says"),
    [
        ("computes", {"type": "answer", "path": "/on"}, "CPU time"),
        ("allocates", {"type": "answer", "path": "/on"}, "memory"),
        ("reads", {"type": "file", "path": "/a"}, "unpacks to more than"),
    ],
)
def test_a_result_that_exhausts_them_scores_zero(pool, guest, tmp_path, func, result, says):
    guest.file = packed({"a": "1" * 2000})
    limits = Limits(cpu=0.5, memory=128 << 20, unpacked=1000)
    evaluators = Evaluators("official", official=pool, limits=limits)
    found = judged(desktop_at(guest), tmp_path, evaluators, func=func, result=result)
    assert (found.score, found.exhausted) == (0.0, True)
    assert says in found.problem
    assert scored(pool, desktop_at(guest), tmp_path, **ON) == 1.0


def test_a_reply_without_end_is_not_read_to_its_end(pool, guest, tmp_path):
    guest.file = bytes(129 << 20)
    evaluators = Evaluators("official", official=pool)
    reads = {"func": "reads", "result": {"type": "file", "path": "/a"}}
    found = judged(desktop_at(guest), tmp_path, evaluators, **reads)
    assert (found.score, found.exhausted) == (0.0, True)
    assert "the reply has more than" in found.problem


def test_an_archive_is_not_unpacked_outside_its_folder(pool, guest, tmp_path):
    place = tmp_path / "outside"
    guest.file = packed({str(place): "1"}, "tar")
    unpacks = {"func": "unpacks", "result": {"type": "file", "path": "/a"}, "expected": expected(1)}
    scored(pool, desktop_at(guest), tmp_path, **unpacks)
    assert not place.exists()


def test_the_architecture_is_the_desktops(pool, guest, tmp_path):
    guest.file = b'{"output": "aarch64\\n"}'
    machine = {"func": "exact_match", "result": {"type": "machine"}, "expected": expected("aarch64")}
    assert scored(pool, desktop_at(guest), tmp_path, **machine) == 1.0


def test_a_getter_raises_a_window(pool, guest, tmp_path):
    """As that of VS Code's settings does in OSWorld's evaluators of 2026."""
    front = {"type": "front", "name": "Visual Studio Code"}
    assert scored(pool, desktop_at(guest), tmp_path, **(ON | {"result": front})) == 1.0
    [(path, body)] = guest.posts
    assert path == "/setup/activate_window"
    assert json.loads(body) == {"window_name": "Visual Studio Code", "strict": False, "by_class": False}


@pytest.mark.parametrize(
    ("result", "lacks"),
    [({"type": "recorded"}, "DesktopEnv.recorder"), ({"type": "front", "name": "x", "replay": 1}, "replayed")],
)
def test_what_newer_evaluators_use_and_we_lack_is_no_score(pool, guest, tmp_path, result, lacks):
    with pytest.raises(DesktopError, match=rf"{lacks}, which osworld-gym does not have") as caught:
        scored(pool, desktop_at(guest), tmp_path, **(ON | {"result": result}))
    assert caught.value.reason is FailureReason.evaluator_failed


def test_ports_are_passed_on(pool, guest, tmp_path):
    port = {"func": "port", "result": {"type": "chrome"}}
    desktop = desktop_at(guest, ports={9222: ("127.0.0.1", 1)})
    assert scored(pool, desktop, tmp_path, **port) == 1.0
    with pytest.raises(DesktopError, match="does not forward port 9222 of its desktops"):
        scored(pool, desktop_at(guest), tmp_path, **port)


def test_a_redirection_by_the_desktop_is_not_followed(pool, guest, other_server, tmp_path):
    """What answers on a forwarded port may be the policy's, and the evaluators have this machine's network."""
    guest.elsewhere = f"http://127.0.0.1:{other_server.server_address[1]}/on"
    desktop = desktop_at(guest, ports={8080: ("127.0.0.1", guest.server_address[1])})
    playing = {"func": "exact_match", "result": {"type": "playing"}, "expected": expected(302)}
    assert scored(pool, desktop, tmp_path, **playing) == 1.0
    assert (guest.paths, other_server.paths) == (["/status"], [])


def test_a_metric_that_imports_the_policys_files_is_refused(pool, guest, tmp_path):
    """OSWorld's runs a test of the desktop in the evaluators' process, with the rights of the trainer's user."""
    metrics, _ = pool.known()
    assert "same" in metrics
    assert "check_python_file_by_test_suite" not in metrics
    with pytest.raises(TaskError, match="is refused, since it imports Python files that the policy wrote"):
        scored(pool, desktop_at(guest), tmp_path, **(ON | {"func": "check_python_file_by_test_suite"}))


def test_an_unknown_metric_is_a_task_error(pool, guest, tmp_path):
    with pytest.raises(
        TaskError, match=r"do not know 'newest'; newer tasks require a newer checkout: set OSWORLD_ROOT"
    ):
        scored(pool, desktop_at(guest), tmp_path, **(ON | {"func": "newest"}))
    with pytest.raises(TaskError, match="do not know 'newer'"):
        scored(pool, desktop_at(guest), tmp_path, **(ON | {"expected": {"type": "newer"}}))
    with pytest.raises(TaskError, match=r"'answer' .*; OSWorld's own evaluators require a guest server, which this"):
        scored(pool, FileDesktop(), tmp_path, **ON)


def test_whose_evaluators_score_is_named_with_a_hash_of_them(place, monkeypatch):
    """OSWorld's of 2025 and of 2026 give other scores for the same files, and have no other version number."""
    monkeypatch.setenv("OSWORLD_ROOT", str(place.folder))
    rule = {"type": "rule", "rules": {"expected": "x"}}
    with_our_metric = Task("a", "i", evaluator={"func": "exact_match", "result": rule, "expected": rule})
    judged_one = Task("b", "i", evaluator={"func": "judge"})
    infeasible = Task("c", "i", evaluator={"func": "infeasible"})
    ours = [with_our_metric, judged_one, infeasible]
    theirs = Task("d", "i", evaluator={"func": "same", "result": {"type": "rule"}})
    assert evaluators_identity(ours, "auto") == evaluators_identity([theirs], "ours") == "ours"
    both, always = evaluators_identity([*ours, theirs], "auto"), evaluators_identity(ours, "official")
    assert both == f"ours, or else {always}"
    assert re.fullmatch(r"OSWorld's \(sha256 [0-9a-f]{16}\)", always)
    (place.folder / "desktop_env-1.0.2.dist-info").mkdir()
    assert evaluators_identity(ours, "official") == always.replace("(", "(desktop_env-1.0.2, ")
    with (place.folder / "desktop_env" / "evaluators" / "metrics" / "__init__.py").open("a") as file:
        file.write("# stricter\n")
    assert always.partition("sha256")[2] not in evaluators_identity(ours, "official")


def test_a_slow_check_is_ended_and_the_next_one_is_answered(pool):
    before = pool.metric("exact_match", ["a", {"expected": "a"}])
    start = time.monotonic()
    with pytest.raises(DesktopError, match=r"took longer than 0.3 s") as caught:
        pool.metric("sleep", [30], deadline=0.3)
    assert time.monotonic() - start < 10
    assert caught.value.reason is FailureReason.evaluator_failed
    assert pool.metric("exact_match", ["a", {"expected": "a"}]) == before == 1.0


def test_a_sidecar_that_exits_is_replaced(pool):
    with pytest.raises(DesktopError, match="process exited"):
        pool.metric("die", [1])
    assert pool.metric("exact_match", ["a", {"expected": "b"}]) == 0.0


def test_no_more_processes_than_asked_for(place):
    pool = OfficialEvaluators(place, size=1)
    pool.known()
    busy = threading.Thread(target=lambda: pool.metric("same", [1, 1]))
    sidecar = pool.sidecars.acquire(5.0)
    busy.start()
    with pytest.raises(DesktopError, match=r"no evaluator process was free within 0.2 s"):
        pool.metric("same", [1, 1], deadline=0.2)
    pool.sidecars.release(sidecar)
    busy.join(60)
    assert not busy.is_alive()
    pool.close()
    assert not sidecar.alive


def test_a_failed_import_names_the_fix(place):
    (place.folder / "desktop_env" / "evaluators" / "metrics" / "__init__.py").write_text("import no_such_library")
    with pytest.raises(DesktopError, match=r"No module named 'no_such_library'; fix: pip install 'osworld-gym\[off"):
        OfficialEvaluators(place).known()


def test_the_command_installs_them_and_the_stub(place, tmp_path, monkeypatch, capsys):
    wheel = tmp_path / "desktop_env-1.0.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in place.folder.rglob("*.py"):
            archive.write(path, path.relative_to(place.folder))
        about = "desktop_env-1.0.2.dist-info"
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: desktop_env\nVersion: 1.0.2\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("OSWORLD_GYM_HOME", str(tmp_path / "home"))
    for name in ("OSWORLD_ROOT", "OSWORLD_OFFICIAL_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    assert cli.main(["install-official", "--wheel", str(wheel)]) == 0
    assert "of getters can be imported in a separate process" in capsys.readouterr().out
    assert find_official() == OfficialLocation(tmp_path / "home" / "official")
    spec = importlib.util.spec_from_file_location("easyocr", tmp_path / "home" / "official" / "easyocr.py")
    stub = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stub)
    with pytest.raises(ImportError, match="compare_image_text requires easyocr"):
        stub.Reader(["en"])  # what OSWorld's metric does
    assert cli.main(["install-official", "--wheel", str(tmp_path / "none.whl")]) == 3
    assert (tmp_path / "home" / "official" / "desktop_env" / "evaluators").is_dir()  # what was there is kept
    evaluator = place.folder / "desktop_env" / "evaluators" / "metrics" / "__init__.py"
    assert cli.main(["install-official", "--folder", str(place.folder), "--wheel", str(wheel)]) == 2
    assert "has a desktop_env that pip has not installed; choose another folder" in capsys.readouterr().err
    assert evaluator.exists()


def test_the_command_names_what_is_missing_before_pip_installs_anything(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "official"
    monkeypatch.setattr("osworld_gym.commands.install.OFFICIAL_IMPORTS", ("json", "no_such_library"))
    assert cli.main(["install-official", "--folder", str(folder)]) == 3
    error = capsys.readouterr().err
    assert "lacks no_such_library, which OSWorld's evaluators import; fix: pip install 'osworld-gym[off" in error
    assert cli.main(["install-official", "--folder", str(folder), "--python", str(tmp_path / "none")]) == 2
    assert f"--python {tmp_path / 'none'} cannot be run" in capsys.readouterr().err
    assert not list(folder.iterdir())


def test_where_they_are_looked_for(tmp_path, monkeypatch, place):
    monkeypatch.setenv("OSWORLD_GYM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("OSWORLD_ROOT", raising=False)
    monkeypatch.delenv("OSWORLD_OFFICIAL_PYTHON", raising=False)
    assert find_official() is None
    with pytest.raises(DesktopError, match="OSWorld's evaluators are not installed"):
        OfficialEvaluators()
    (tmp_path / "home" / "official" / "desktop_env").mkdir(parents=True)
    assert find_official().folder == tmp_path / "home" / "official"
    monkeypatch.setenv("OSWORLD_ROOT", str(place.folder))  # a checkout has precedence; our stub comes after it
    monkeypatch.setenv("OSWORLD_OFFICIAL_PYTHON", "/opt/python")
    found = find_official()
    assert (found.folder, found.python) == (place.folder, "/opt/python")
    assert found.path == f"{place.folder}:{tmp_path / 'home' / 'official'}"


def test_the_script_imports_nothing_of_ours():
    assert "osworld_gym" not in official.SCRIPT.read_text()
