"""The connection to a Ray cluster, and calls of actors; requires the extra ``ray``.

Only the process that starts a run imports this module, and the actors that it starts. Actors do not depend on each
other's clocks, and no call waits without a deadline.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Any, TypeVar

import ray
from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from bepa_torchrl.scale.rollouts.gate import Gate, GateEndedError
from bepa_torchrl.scale.rollouts.queue_service import MAX_WORKERS
from bepa_torchrl.scale.rollouts.ray_address import FIX, check_head
from osworld_gym import __version__
from osworld_gym.errors import DesktopError, FailureReason

_log = logging.getLogger(__name__)
#: simultaneous calls of an actor: of the queue one per worker that waits for leases, and others; of a rollout service
#: one per desktop, further ones wait
CALLERS = MAX_WORKERS + 56
#: the group of an actor's calls that are answered also while all others wait, and how many of them at once
CONTROL, CONTROLS = "control", 4
DESKTOPS = "desktops"  #: resource of the nodes that get a worker: ``ray start --resources='{"desktops": 8}'``
_MARGIN = 60.0  #: seconds that a call may take in addition to what it waits for
_SILENCE = 60.0  #: seconds after which a call that is still waited for is logged, and between two such lines
_WAITS = ("lease", "next_group", "next_evaluation", "evaluation_ready")  #: methods that wait for their last argument
Method = TypeVar("Method", bound=Callable[..., Any])


def control(method: Method) -> Method:
    """Makes a method of an actor one of the group :data:`CONTROL`."""
    marked: Method = ray.method(concurrency_group=CONTROL)(method)
    return marked


class ActorClient:
    """An actor's methods as ordinary calls with a deadline.

    Its attributes are the actor's methods, and no others. A call raises as the method does, and DesktopError if the
    actor has exited, cannot be reached or does not answer in time.

    Args:
        actor: the handle.
        deadline: seconds for a call, in addition to a ``timeout`` that is its last argument.
        fix: what to do if the actor has exited, or does not answer, for the error.
        name: what it is. If given, a call that is waited for for long is logged once a minute.
    """

    def __init__(self, actor: Any, deadline: float = _MARGIN, fix: str = "", name: str = "") -> None:
        self._actor, self._deadline, self._fix, self._name = actor, deadline, fix, name
        self._gate = Gate(f"{name or 'an actor'} has ended with the run")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        method = getattr(self._actor, name)  # else an optional method would seem to be there for every actor
        waits, actor = name in _WAITS, self._name or "an actor"

        def call(*args: Any) -> Any:
            deadline = self._deadline + (float(args[-1]) if waits else 0.0)
            try:
                with self._gate.passing(deadline):
                    return self._answer(method.remote(*args), name, deadline)
            except GateEndedError as error:
                raise DesktopError(FailureReason.died, str(error)) from error
            except RayTaskError:
                raise  # Ray raises a subclass of the method's own error
            except GetTimeoutError as error:
                late = f"{actor} did not answer {name} in {deadline:g} s{self._fix}"
                raise DesktopError(FailureReason.hung, late) from error
            except RayActorError as error:
                raise DesktopError(FailureReason.died, f"{actor} has exited: {error}{self._fix}") from error
            except RayError as error:
                raise DesktopError(FailureReason.died, f"{actor} cannot be reached by {name}: {error}") from error

        return call

    def _answer(self, asked: Any, method: str, deadline: float) -> Any:
        """Ray's answer. Raises GetTimeoutError after ``deadline`` seconds."""
        waited, step = 0.0, _SILENCE if self._name else deadline
        while True:
            part = min(step, deadline - waited)
            try:
                return ray.get(asked, timeout=part)
            except GetTimeoutError:
                waited += part
                if waited >= deadline:
                    raise
            _log.warning(
                "%s has not answered %s for %.0f s; it may be starting again, and is waited for for %.0f s in all",
                self._name,
                method,
                waited,
                deadline,
            )


def end_calls(client: ActorClient, within: float) -> int:
    """Lets no thread call an actor any more, and waits for the calls that are under way: after the actor was killed.

    While a thread waits for an answer Ray must not be shut down: the thread would never return, and keep a processor
    busy, or the process would crash in the next cluster that it joins.

    Args:
        client: the actor's.
        within: seconds.

    Returns:
        How many calls have not ended.
    """
    return client._gate.end(within)


def connect(address: str | None = None, **options: Any) -> None:
    """Connects to a Ray cluster.

    Args:
        address: of the cluster's head; None: a new cluster on this machine, for this process, also if others run here.
        options: further arguments of ``ray.init``.

    Raises:
        DesktopError: there is no cluster at the address, it has another version of Ray or Python, or a new one does not
            start.
        ValueError: no address.
    """
    if address is not None:
        check_head(address)
        # `ray start` requires Ray's token if there is one, but ray.init does not send it by itself
        maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    if address is None:
        _start(options)
        return
    try:
        ray.init(address=address, **options)
    except ConnectionError as error:
        raise DesktopError(
            FailureReason.never_ready,
            f"no Ray cluster at {address} ({error}); {FIX} (if it runs: has this machine its ~/.ray/auth_token?)",
        ) from error
    except RuntimeError as error:
        if "version mismatch" not in str(error).lower():
            raise
        raise DesktopError(
            FailureReason.never_ready, f"{address}: {error}; install the same versions of Ray and Python on every node"
        ) from error


def _start(options: dict[str, Any]) -> None:
    """A new cluster on this machine. Raises DesktopError if it does not start, such as on one that is too busy."""
    try:
        ray.init(address="local", include_dashboard=False, **options)  # not that of RAY_ADDRESS, or one that runs here
    except Exception as error:
        # Ray raises no class of its own for a process that is not ready after 30 s, or whose GCS does not start
        late = type(error) is Exception or (type(error) is RuntimeError and "start GCS" in str(error))
        if not late and not isinstance(error, ConnectionError):
            raise
        raise DesktopError(
            FailureReason.never_ready,
            f"Ray has not started on this machine ({error}); free some of its CPUs and memory; restarts=N tries it "
            "again",
        ) from error


def described(actor: Any, within: float = 10.0) -> Any:
    """What an actor waits for: its ``describe()``, or why there is no answer."""
    try:
        return ray.get(actor.describe.remote(), timeout=within)
    except GetTimeoutError:
        return f"no answer in {within:g} s"
    except RayError as error:
        return f"has exited, or failed ({reason_of(error)})"


def reason_of(error: RayError) -> str:
    """One line of an error of Ray: its first, or what an actor raised that could not be made."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1] if getattr(error, "actor_init_failed", False) else lines[0]


def check_version(expected: str) -> None:
    """Compares this node's version of the package with that of the process that starts the actor.

    Raises:
        RuntimeError: they differ. (Ray cannot send a DesktopError from an actor's constructor.)
    """
    if expected != __version__:
        raise RuntimeError(
            f"expected version {expected} of osworld-gym, as where the run was started, node {socket.gethostname()} "
            f"has {__version__}; install the same version on every node"
        )
