"""The sidecar process that runs OSWorld's evaluators: one request per line on stdin, one reply per line on stdout.

Run as a script, with the interpreter and ``PYTHONPATH`` that ``official_pool.py`` chooses; it imports only
``calling`` of this package. Requests are JSON with ``limits``: ``{"metric", "arguments", "options"}`` calls a metric
with values or paths; ``{"check", "desktop"}`` runs one metric of a task with its getters against a guest server.
Replies: ``{"score"}``, ``{"missing": true}`` for a result file that does not exist, ``{"broken"}`` for a result that
cannot be read, ``{"exhausted"}`` for one that exceeds a limit, ``{"error"}``, or ``{"ready", "metrics", "getters"}``
once at the start.
"""

from __future__ import annotations

import ast
import json
import os
import sys
import tarfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

# the package in this folder, which is on the path of a script
from calling import (
    RUNS_RESULTS,
    BrokenResult,
    Exhausted,
    Limits,
    Unsupported,
    address_space,
    as_rules,
    call_metric,
    check_file,
    get_result,
    lift_memory_limit,
    limit_process,
)

HTTP_TIMEOUT = 60.0  # seconds for a request of OSWorld's client without a timeout
MAX_ANSWER = 128 << 20  # bytes of one reply of the desktop
CHUNK = 1 << 20  # bytes


class GuestUnreachable(Exception):
    """A request to the desktop failed, so OSWorld's result is not a score."""


class Watch:
    """Wraps ``requests`` for OSWorld's code: adds the token and a timeout, and records failed requests.

    OSWorld's getters return None for an unreachable desktop, and its metrics score None 0; the record prevents that.
    """

    def __init__(self, requests: Any) -> None:
        self.server, self.token, self.failures, self.too_large = "", "", list[str](), ""
        self.places: tuple[str, ...] = ()  # what the addresses of the desktop's ports begin with
        self._errors = requests.exceptions.RequestException
        self._send = requests.Session.request
        watch = self

        def request(session: Any, method: str, url: str, **options: Any) -> Any:
            return watch.request(session, method, url, options)

        requests.Session.request = request

    def request(self, session: Any, method: str, url: str, options: dict[str, Any]) -> Any:
        """Sends one request, with this desktop's token.

        A redirection by the desktop is not followed: this process has the host's network, and a program of the policy
        may answer on a port that is forwarded.
        """
        options["timeout"] = options.get("timeout") or HTTP_TIMEOUT
        ours = bool(self.server) and url.startswith(self.server)
        if url.startswith(self.places):
            options["allow_redirects"] = False
        if ours and self.token:
            options["headers"] = {**(options.get("headers") or {}), "Authorization": f"Bearer {self.token}"}
        try:
            answer = self._send(session, method, url, **(options | {"stream": True} if ours else options))
            if ours:
                self._receive(answer, url)
        except self._errors as error:
            if ours:
                self.failures.append(f"{method} {url}: {type(error).__name__}: {error}")
            raise
        if ours and (answer.status_code == 401 or (answer.status_code >= 500 and not url.endswith("/file"))):
            self.failures.append(f"{method} {url}: status {answer.status_code}: {answer.text[:200]}")
        if ours and url.endswith("/accessibility") and answer.status_code == 200 and answer.json().get("truncated"):
            self.failures.append(f"{method} {url}: a program did not answer in time, so the tree is incomplete")
        return answer

    def _receive(self, answer: Any, url: str) -> None:
        """Reads a reply of the desktop, whose size the policy decides, up to ``MAX_ANSWER`` bytes."""
        parts, size = [], 0
        for part in answer.iter_content(CHUNK):
            parts.append(part)
            size += len(part)
            if size > MAX_ANSWER:
                self.too_large = f"{url}: the reply has more than {MAX_ANSWER} bytes"
                answer.close()
                break
        answer._content = b"".join(parts)  # what reading it at once would set

    def check(self) -> None:
        """Raises for what OSWorld's getters do not report: an unreachable desktop, a reply that is too large."""
        if self.failures:
            raise GuestUnreachable("; ".join(self.failures))
        if self.too_large:
            raise Exhausted(self.too_large)


class Partial:
    """A part of OSWorld's own object of the same role. Another attribute of it raises Unsupported."""

    def __getattr__(self, name: str) -> Any:
        role = type(self).__name__
        raise Unsupported(f"these evaluators of OSWorld ask for {role}.{name}, which osworld-gym does not have")


class SetupController(Partial):
    """The steps of OSWorld's ``SetupController`` that its getters run.

    Args:
        server: the guest server's URL.
    """

    def __init__(self, server: str) -> None:
        self._server = server

    def _activate_window_setup(self, window_name: str, strict: bool = False, by_class: bool = False) -> None:
        import requests

        fields = {"window_name": window_name, "strict": strict, "by_class": by_class}
        requests.post(f"{self._server}/setup/activate_window", json=fields, timeout=HTTP_TIMEOUT)


class DesktopEnv(Partial):
    """The attributes of OSWorld's ``DesktopEnv`` that its getters read.

    Raises:
        GuestUnreachable: the provider does not forward the requested port.
    """

    current_use_proxy = False

    def __init__(self, desktop: dict[str, Any]) -> None:
        from desktop_env.controllers.python import PythonController

        self._desktop = desktop
        self.vm_ip, self.server_port = desktop["host"], desktop["port"]
        self.cache_dir = desktop["folder"]
        self.client_password = desktop["password"]
        self.controller = PythonController(vm_ip=self.vm_ip, server_port=self.server_port)
        self.controller.retry_times, self.controller.retry_interval = 1, 0  # no retries: a failure is reported at once
        self.setup_controller = SetupController(f"http://{self.vm_ip}:{self.server_port}")
        self.vm_platform = "Linux"

    @property
    def vm_machine(self) -> str:
        """The desktop's processor architecture, which may be another than this machine's."""
        answer = self.controller.execute_python_command("import platform; print(platform.machine())")
        return str((answer or {}).get("output", "")).strip()

    @property
    def vm_screen_size(self) -> Any:
        return self.controller.get_vm_screen_size()

    @property
    def chromium_port(self) -> int:
        return self._port("chromium_port", 9222)

    @property
    def vlc_port(self) -> int:
        return self._port("vlc_port", 8080)

    def _port(self, name: str, inside: int) -> int:
        if not self._desktop.get(name):
            raise GuestUnreachable(f"this provider does not forward port {inside} of its desktops")
        return int(self._desktop[name])


def _check(check: dict[str, Any], desktop: dict[str, Any], watch: Watch, limits: Limits) -> dict[str, Any]:
    """Runs one metric with its getters, in OSWorld's order."""
    from desktop_env.evaluators import getters, metrics

    watch.server, watch.token = f"http://{desktop['host']}:{desktop['port']}", desktop["token"]
    watch.failures, watch.too_large = [], ""
    ports = (desktop["port"], desktop.get("chromium_port"), desktop.get("vlc_port"))
    watch.places = tuple(f"http://{desktop['host']}:{port}" for port in ports if port)
    env = DesktopEnv(desktop)

    def get(config: dict[str, Any]) -> Any:
        return getattr(getters, f"get_{config['type']}")(env, config)

    try:
        result = get_result(lambda: get(check["result"]))
    except FileNotFoundError:
        watch.check()
        return {"missing": True}
    except BrokenResult:
        watch.check()
        raise
    expected = _expected(check, get, watch)
    watch.check()
    for value in (result, *(expected if check.get("on_desktop") else ())):
        _check_files(value, Path(desktop["folder"]), limits)
    metric = getattr(metrics, check["func"])
    return {"score": call_metric(metric, result, expected, check.get("options") or {}, gold=check.get("gold", False))}


def _expected(check: dict[str, Any], get: Callable[[dict[str, Any]], Any], watch: Watch) -> tuple[Any, ...]:
    """The expected value as a tuple of 0 or 1 items."""
    config = check.get("expected")
    if not config:
        return ()
    if not check.get("on_desktop"):
        return (as_rules(get(config)),)
    try:
        return (get_result(lambda: get(config)),)
    except (FileNotFoundError, BrokenResult) as error:
        watch.check()
        raise BrokenResult(str(error)) from error


def _check_files(value: Any, folder: Path, limits: Limits) -> None:
    """Checks the files of this evaluation that a getter returned as paths, before a metric reads them."""
    for path in value if isinstance(value, list) else [value]:
        if isinstance(path, str) and path.startswith(str(folder)) and Path(path).is_file():
            with Path(path).open("rb") as file:
                check_file(file, limits)


def _answer(question: dict[str, Any], watch: Watch, base: int) -> dict[str, Any]:
    from desktop_env.evaluators import metrics

    home, limits = Path.cwd(), Limits(**question["limits"])
    try:
        limit_process(limits, base)
        if "metric" in question:
            metric = getattr(metrics, question["metric"])
            return {"score": float(metric(*question["arguments"], **question.get("options") or {}))}
        os.chdir(question["desktop"]["folder"])  # some metrics write temp.pdf to the current folder
        return _check(question["check"], question["desktop"], watch, limits)
    except MemoryError:
        lift_memory_limit()
        return {"exhausted": "the evaluator reached its limit of memory"}
    except Exhausted as error:
        return {"exhausted": str(error)}
    except BrokenResult as error:
        return {"broken": str(error)}
    except Exception as error:  # noqa: BLE001  process boundary: any exception is reported to the pool
        return {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc(limit=-3)}
    finally:
        os.chdir(home)


def _keep_harmless() -> None:
    """Keeps OSWorld's metrics from doing what a result says: to be evaluated or imported as Python, unpacked anywhere.

    A metric of GNOME's favourites calls ``eval`` on a command's output, and ``shutil.unpack_archive`` trusts tar files.
    Metrics that import the policy's Python files are removed: this process may do whatever the trainer's user may.
    """
    from desktop_env.evaluators import metrics

    tarfile.TarFile.extraction_filter = staticmethod(tarfile.data_filter)
    owner = sys.modules.get(f"{metrics.__name__}.basic_os")
    if owner is not None:
        owner.eval = ast.literal_eval  # type: ignore[attr-defined]
    for name in RUNS_RESULTS & set(dir(metrics)):
        delattr(metrics, name)


def _names(module: Any, prefix: str = "") -> list[str]:
    return sorted(name.removeprefix(prefix) for name in dir(module) if name.startswith(prefix) and name[0] != "_")


def main(questions: IO[str], answers: IO[str]) -> None:
    """Replies to requests until stdin ends."""

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        import requests
        from desktop_env.evaluators import getters, metrics

        _keep_harmless()
    except ImportError as error:
        say({"ready": False, "error": f"{type(error).__name__}: {error}"})
        return
    watch, base = Watch(requests), address_space()
    say({"ready": True, "metrics": _names(metrics), "getters": _names(getters, "get_")})
    for line in questions:
        say(_answer(json.loads(line), watch, base))


if __name__ == "__main__":
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # OSWorld's code prints: send that to the log, not into the replies
    main(sys.stdin, out)
