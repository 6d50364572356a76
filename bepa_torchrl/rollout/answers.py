"""Responses of a sampler to desktops that wait: in one batch, or each as soon as it is there.

A sampler that is called by one thread (:class:`BatchedAnswers`) answers all that wait in one call, which ends with the
longest response. An engine that forms its own batches (:class:`ConcurrentAnswers`) is given each prompt by itself, and
its desktop goes on while others are still waiting for theirs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.policies.base import EngineSampler, Sampler


class Question(NamedTuple):
    """A desktop that waits for a response.

    Args:
        desktop: its number.
        prompt: the prompt.
        key: the response's seed key.
    """

    desktop: int
    prompt: Prompt
    key: tuple[int, ...]


class Answers(Protocol):
    """Responses to questions."""

    def ask(self, questions: Sequence[Question]) -> None:
        """Takes questions, whose responses :meth:`take` returns."""

    def take(self, *, wait: bool) -> list[tuple[Question, Response]]:
        """Responses that are there, each once. With ``wait`` at least one, if any is asked for.

        Raises:
            Exception: what the sampler raised.
        """

    @property
    def pending(self) -> int:
        """Number of questions whose response was not taken yet."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Ends the threads, if any. After an error they are not waited for: the sampler's owner ends it."""


class BatchedAnswers:
    """All questions of an :meth:`ask` in one call of the sampler, in the caller's thread."""

    def __init__(self, sampler: Sampler, temperature: float) -> None:
        self._sampler, self._temperature = sampler, temperature
        self._answered: deque[tuple[Question, Response]] = deque()

    @property
    def pending(self) -> int:
        """Number of questions whose response was not taken yet."""
        return len(self._answered)

    def ask(self, questions: Sequence[Question]) -> None:
        """As of :class:`Answers`."""
        if not questions:
            return
        prompts, keys = [question.prompt for question in questions], [question.key for question in questions]
        responses = self._sampler.sample(prompts, keys, temperature=self._temperature)
        self._answered.extend(zip(questions, responses, strict=True))

    def take(self, *, wait: bool) -> list[tuple[Question, Response]]:
        """As of :class:`Answers`; nothing is waited for."""
        del wait
        answered, self._answered = list(self._answered), deque()
        return answered

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        return None


class ConcurrentAnswers:
    """One call of the sampler per question, each in a thread of its own.

    Args:
        sampler: may be called by several threads at once.
        temperature: the temperature of the sampling.
        most: maximum number of questions at once.
        on_answer: called, in any thread, after a response is there.
    """

    def __init__(self, sampler: Sampler, temperature: float, most: int, on_answer: Callable[[], None]) -> None:
        self._sampler, self._temperature, self._on_answer = sampler, temperature, on_answer
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="sample")
        self._done: SimpleQueue[tuple[Question, Future[list[Response]]]] = SimpleQueue()
        self._asked = self._taken = 0

    @property
    def pending(self) -> int:
        """Number of questions whose response was not taken yet."""
        return self._asked - self._taken

    def ask(self, questions: Sequence[Question]) -> None:
        """As of :class:`Answers`."""
        for question in questions:
            future = self._threads.submit(
                self._sampler.sample, [question.prompt], [question.key], temperature=self._temperature
            )
            self._asked += 1
            future.add_done_callback(lambda done, question=question: self._finish(question, done))  # type: ignore[misc]

    def _finish(self, question: Question, future: Future[list[Response]]) -> None:
        self._done.put((question, future))
        self._on_answer()

    def take(self, *, wait: bool) -> list[tuple[Question, Response]]:
        """As of :class:`Answers`. The sampler's own deadlines end a call that hangs."""
        answered: list[tuple[Question, Response]] = []
        while self.pending and ((wait and not answered) or not self._done.empty()):
            question, future = self._done.get()
            self._taken += 1
            answered.append((question, future.result()[0]))
        return answered

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._threads.shutdown(wait=error is None, cancel_futures=True)


def make_answers(sampler: Sampler, temperature: float, most: int, on_answer: Callable[[], None]) -> Answers:
    """How a sampler answers ``most`` desktops: by :class:`ConcurrentAnswers` if it may be called by several threads."""
    if isinstance(sampler, EngineSampler) and sampler.concurrent:
        return ConcurrentAnswers(sampler, temperature, most, on_answer)
    return BatchedAnswers(sampler, temperature)
