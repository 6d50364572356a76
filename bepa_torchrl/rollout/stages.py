"""The stages of a long job that plays episodes: each finished episode is kept, and progress is reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from time import perf_counter
from typing import Any, Protocol

from tensordict import TensorDictBase

from bepa_torchrl.policies.base import Sampler
from bepa_torchrl.rollout.episodes import EpisodeJob, EpisodeResult, run_episodes
from bepa_torchrl.storage.ledger import Ledger
from osworld_gym.errors import FailureReason
from osworld_gym.types import StopReason, Verdict
from osworld_gym.vector import DesktopVector


class RunEpisodes(Protocol):
    """Plays jobs as :func:`~bepa_torchrl.rollout.episodes.run_episodes` does."""

    def __call__(
        self,
        policy: Sampler,
        vector: DesktopVector,
        jobs: Sequence[EpisodeJob],
        *,
        temperature: float = 1.0,
        retries: int = 2,
    ) -> list[EpisodeResult]: ...


class StageProgress(Protocol):
    """Shows how far a stage is."""

    def begin(self, name: str, total: int, done: int) -> None:
        """A stage of ``total`` units begins, of which ``done`` were finished by an earlier process."""
        ...

    def advance(self) -> None:
        """One more unit is finished."""
        ...


class SilentProgress:
    """Shows nothing."""

    def begin(self, name: str, total: int, done: int) -> None: ...

    def advance(self) -> None: ...


class Stages:
    """The episodes that a job has finished, also in an earlier process that was killed, and how far it is.

    Args:
        ledger: where finished units are kept; None: nowhere, then everything is done.
        progress: shows it; None: nothing is shown.
        context: JSON-compatible; units that were finished with another one are done again.

    ``failures`` are the failed attempts of the episodes that earlier processes finished, by reason.
    """

    def __init__(
        self, ledger: Ledger | None = None, progress: StageProgress | None = None, *, context: Any = None
    ) -> None:
        self.ledger, self.context = ledger, context
        self.progress = SilentProgress() if progress is None else progress
        self.failures: Counter[FailureReason] = Counter()
        self._started = perf_counter() - (0.0 if ledger is None else ledger.seconds)

    @property
    def seconds(self) -> float:
        """Seconds so far, those of earlier processes included."""
        return perf_counter() - self._started

    def episodes(self, name: str, *, rows: Callable[[EpisodeResult], bool] = lambda _: False) -> RunEpisodes:
        """A replacement of :func:`run_episodes` that plays only what is not finished, and returns the same results.

        An episode that was lost to the infrastructure is not finished.

        Args:
            name: the name of the stage; further calls are numbered as its attempts.
            rows: whether a result is read with its rows later; only then are they kept.
        """
        calls = 0

        def run(
            policy: Sampler,
            vector: DesktopVector,
            jobs: Sequence[EpisodeJob],
            *,
            temperature: float = 1.0,
            retries: int = 2,
        ) -> list[EpisodeResult]:
            nonlocal calls
            calls += 1
            determined = (self.context, policy.version, temperature)
            known = {n: kept for n, job in enumerate(jobs) if (kept := self._kept(job, determined, rows)) is not None}
            self.progress.begin(name if calls == 1 else f"{name}, attempt {calls}", len(jobs), len(known))
            missing = [n for n in range(len(jobs)) if n not in known]

            def finished(result: EpisodeResult) -> None:
                self._keep(result, determined, rows(result))
                self.progress.advance()

            wanted = [jobs[n] for n in missing]
            played = run_episodes(policy, vector, wanted, temperature=temperature, retries=retries, on_result=finished)
            results = known | dict(zip(missing, played, strict=True))
            return [results[n] for n in range(len(jobs))]

        return run

    def rows(self, make: Callable[[], TensorDictBase], *identity: Any) -> TensorDictBase:
        """Rows ``[S]`` that are made only if no earlier process has finished them.

        Args:
            make: makes them.
            identity: JSON-compatible values that determine them.
        """
        recorded = None if self.ledger is None else self.ledger.find(*identity, self.context)
        if recorded is not None and recorded[1] is not None:
            return recorded[1]
        rows = make()
        if self.ledger is not None:
            self.ledger.add(*identity, self.context, data={}, rows=rows)
        return rows

    def _kept(
        self, job: EpisodeJob, determined: tuple[Any, ...], with_rows: Callable[[EpisodeResult], bool]
    ) -> EpisodeResult | None:
        recorded = None if self.ledger is None else self.ledger.find(*_identity(job), *determined)
        if recorded is None:
            return None
        data, rows = recorded
        result = EpisodeResult(
            job,
            rows,
            StopReason(data["stop"]),
            None if data["verdict"] is None else Verdict(**data["verdict"]),
            None if data["failure"] is None else FailureReason(data["failure"]),
            tuple(FailureReason(reason) for reason in data["retried"]),
            int(data.get("steps", 0)),
            float(data.get("seconds", 0.0)),
        )
        if rows is None and result.steps and with_rows(result):
            return None  # finished by a process that did not keep its rows, as before ``record.outcomes`` was set
        self.failures.update(result.failures)
        return result

    def _keep(self, result: EpisodeResult, determined: tuple[Any, ...], rows: bool) -> None:
        if self.ledger is None or result.stop is StopReason.env_error:
            return
        verdict = result.verdict
        data: Mapping[str, Any] = {
            "stop": result.stop.value,
            "verdict": None if verdict is None else asdict(verdict),
            "failure": None if result.failure is None else result.failure.value,
            "retried": [reason.value for reason in result.retried],
            "steps": result.steps,
            "seconds": result.seconds,
        }
        self.ledger.add(*_identity(result.job), *determined, data=data, rows=result.rows if rows else None)


def _identity(job: EpisodeJob) -> tuple[Any, ...]:
    """The values that determine an episode, apart from the policy and the temperature."""
    place = [list(job.key), job.env_seed, job.group_id, job.slot]
    handover = (job.handover,) if job.handover else ()  # the ledgers of earlier versions have none
    return "episode", job.task.id, job.task.content_hash, *place, job.plan, *handover
