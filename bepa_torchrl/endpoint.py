"""A language model behind an OpenAI-compatible endpoint: answers are checked, cached on disk, and counted.

Plans and conversions of experts' traces, and judges, ask a model thousands of times. The client of the package
``openai`` retries rate limits, timeouts and server errors; here is what it leaves to its caller: an answer that is of
no use is asked for again and then refused by name, one that was given is never paid for twice, and at most N requests
are open.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from osworld_gym.atomic import write_text
from osworld_gym.extras import require_extra

T = TypeVar("T")
Item = TypeVar("Item")
#: chat messages as of the API: ``role`` and ``content``, a text or parts with text and images
Messages = Sequence[Mapping[str, Any]]

_SCHEMA = "bepa.answer/1"
_REFUSED = (400, 413, 422)  # HTTP statuses that are about the request, not about the endpoint


class EndpointError(RuntimeError):
    """The endpoint gave no answer: it cannot be reached, refuses the request, or is no chat endpoint."""


class RequestRefusedError(EndpointError):
    """The endpoint works, and refuses this request: it is too long, has too many images, or its content is filtered."""


class AnswerError(ValueError):
    """The model's answers were of no use, each time it was asked. ``answers`` are their texts."""

    def __init__(self, message: str, answers: Sequence[str]) -> None:
        super().__init__(message)
        self.answers = tuple(answers)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint and how it is asked.

    Args:
        model: name of the model, as the endpoint knows it.
        base_url: URL of an OpenAI-compatible API, such as ``http://127.0.0.1:8000/v1``; None: OpenAI's.
        api_key_env: environment variable that has the key; an endpoint of one's own needs none.
        temperature: the temperature of sampling.
        max_tokens: maximum tokens of an answer.
        timeout: seconds until an attempt counts as failed.
        retries: further attempts after a rate limit, a timeout, a lost connection or a server's error.
        at_once: maximum number of open requests.
        asks: how often an answer that is of no use is asked for, the first time included.
        price: US dollars per million tokens of prompts and of answers; None: cost is not counted.
        reasoning: whether it is a reasoning model of OpenAI's (o4-mini), which takes no temperature, and whose limit of
            tokens is named ``max_completion_tokens``.

    Raises:
        ValueError: a value is out of range.
    """

    model: str
    base_url: str | None = None
    api_key_env: str = "OPENAI_API_KEY"
    temperature: float = 0.0
    max_tokens: int = 2048
    timeout: float = 120.0
    retries: int = 5
    at_once: int = 8
    asks: int = 3
    price: tuple[float, float] | None = None
    reasoning: bool = False

    def __post_init__(self) -> None:
        for name, least in (("max_tokens", 1), ("at_once", 1), ("asks", 1), ("retries", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"endpoint: {name} must be at least {least}, got {getattr(self, name)}")
        if not self.timeout > 0 or not 0 <= self.temperature < math.inf:
            got = f"{self.timeout:g} and {self.temperature:g}"
            raise ValueError(f"endpoint: expected timeout > 0 and temperature >= 0, got {got}")
        if self.base_url is not None and not re.match(r"https?://[^/]", self.base_url):
            raise ValueError(f"endpoint: expected a URL such as http://127.0.0.1:8000/v1, got {self.base_url!r}")
        if self.base_url is not None and re.match(r"https?://[^/]*@", self.base_url):
            raise ValueError(f"endpoint: what stands before '@' in its URL would be recorded; set {self.api_key_env}")
        if not self.model:
            raise ValueError("endpoint: expected the name of a model, got an empty one")


@dataclass(slots=True)
class Usage:
    """What was asked of an endpoint.

    Args:
        requests: answers that the endpoint gave.
        cached: answers that were read from the disk instead.
        prompt_tokens: the prompt tokens of the requests, as the endpoint counts them; 0 if it does not.
        answer_tokens: likewise.
        refused: answers that were of no use.
    """

    requests: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    refused: int = 0

    def cost(self, price: tuple[float, float] | None) -> float | None:
        """US dollars at ``price`` per million tokens of prompts and answers; None without a price."""
        if price is None:
            return None
        return (self.prompt_tokens * price[0] + self.answer_tokens * price[1]) / 1e6

    def summary(self, price: tuple[float, float] | None) -> str:
        """One line for a person."""
        cost = self.cost(price)
        return (
            f"{self.requests} answers from the endpoint, {self.cached} from the cache, {self.refused} refused; "
            f"{self.prompt_tokens:,} + {self.answer_tokens:,} tokens" + ("" if cost is None else f", ${cost:,.2f}")
        )


@dataclass
class ChatModel:
    """A model that is asked; any number of threads may.

    Args:
        endpoint: where and how.
        cache: folder of the answers by the hash of model, messages and sampling, created if missing; None: answers are
            not kept. Any number of processes may share it.

    Raises:
        MissingExtraError: the package ``openai`` is not installed.
    """

    endpoint: Endpoint
    cache: Path | None = None
    usage: Usage = field(default_factory=Usage)

    def __post_init__(self) -> None:
        require_extra("endpoint", "a model behind an endpoint")
        import openai

        own = self.endpoint.base_url is not None
        key = os.environ.get(self.endpoint.api_key_env) or ("none" if own else None)
        if key is None:
            raise EndpointError(
                f"{self.endpoint.model}: the environment variable {self.endpoint.api_key_env} has no key; set it, or "
                "give the URL of an endpoint that needs none"
            )
        self._client = openai.OpenAI(
            api_key=key,
            base_url=self.endpoint.base_url,
            timeout=self.endpoint.timeout,
            max_retries=self.endpoint.retries,
        )
        self._slots = threading.Semaphore(self.endpoint.at_once)
        self._counting = threading.Lock()

    def ask(self, messages: Messages, check: Callable[[str], T], *, what: str) -> T:
        """The checked answer to chat messages.

        Args:
            messages: the request.
            check: answer → result; raises ValueError, with the reason, if the answer is of no use.
            what: names the request in errors.

        Raises:
            AnswerError: no answer was of use; the message has the last reason.
            EndpointError: the endpoint gave no answer.
            OSError: an answer cannot be kept (the disk is full); those before it are.
        """
        answers, reason = [], ""
        for number in range(self.endpoint.asks):
            answers.append(self._answer(messages, number))
            try:
                return check(answers[-1])
            except ValueError as error:
                reason = str(error)
                self._count(refused=1)
        said = " ".join(answers[-1].split())[:200]
        message = (
            f"{what}: {len(answers)} answers of {self.endpoint.model} were of no use, the last: {reason}; {said!r}"
        )
        raise AnswerError(message, answers)

    def _answer(self, messages: Messages, number: int) -> str:
        """The answer number ``number`` to a request, from the cache if it has it."""
        path = self._path(messages, number)
        if path is not None and (kept := _read(path)) is not None:
            self._count(cached=1)
            return kept
        text = self._request(messages)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            data = {"schema": _SCHEMA, "model": self.endpoint.model, "answer": text}
            write_text(path, json.dumps(data, ensure_ascii=False), durable=False)
        return text

    def _path(self, messages: Messages, number: int) -> Path | None:
        if self.cache is None:
            return None
        endpoint = self.endpoint
        request = [endpoint.model, endpoint.base_url, endpoint.temperature, endpoint.max_tokens, number, messages]
        request += ["reasoning"] if endpoint.reasoning else []  # other requests keep the names of their answers
        digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
        return self.cache / digest[:2] / f"{digest}.json"

    def _request(self, messages: Messages) -> str:
        """The answer of the endpoint. Half characters, which a cut text can have and UTF-8 has not, are replaced."""
        import openai

        endpoint = self.endpoint
        where = f"{endpoint.model} at {self._client.base_url}"
        sampling: dict[str, Any] = {"temperature": endpoint.temperature, "max_tokens": endpoint.max_tokens}
        if endpoint.reasoning:
            sampling = {"max_completion_tokens": endpoint.max_tokens}
        try:
            with self._slots:
                reply: Any = self._client.chat.completions.create(
                    model=endpoint.model,
                    messages=_whole_text(messages),
                    **sampling,
                )
        except openai.APIStatusError as error:
            text = " ".join(error.response.text.split())[:200]
            kind = RequestRefusedError if error.status_code in _REFUSED else EndpointError
            raise kind(f"{where}: status {error.status_code}: {text}") from error
        except openai.APIConnectionError as error:
            late = isinstance(error, openai.APITimeoutError)
            what = f"no answer within {endpoint.timeout:g} s" if late else f"no connection ({error.__cause__ or error})"
            raise EndpointError(f"{where}: {what}, {endpoint.retries + 1} times; is it running?") from error
        except (openai.OpenAIError, ValueError) as error:  # a body that is no JSON
            raise EndpointError(f"{where}: expected a chat completion, got something else ({error})") from error
        try:
            text = reply.choices[0].message.content
        except (AttributeError, IndexError, TypeError):
            raise EndpointError(
                f"{where}: expected a chat completion, got {str(reply)[:200]!r}; check its URL"
            ) from None
        used = getattr(reply, "usage", None)
        self._count(
            requests=1,
            prompt_tokens=getattr(used, "prompt_tokens", 0) or 0,
            answer_tokens=getattr(used, "completion_tokens", 0) or 0,
        )
        return str(_whole_text(text or ""))

    def _count(self, **more: int) -> None:
        with self._counting:
            for name, value in more.items():
                setattr(self.usage, name, getattr(self.usage, name) + value)


def asked(items: Iterable[Item], work: Callable[[Item], T], *, at_once: int) -> Iterator[tuple[Item, T]]:
    """Yields each item with ``work(item)`` as soon as it is there, in any order; at most ``at_once`` threads work.

    Raises:
        Exception: whatever ``work`` raises; items that have not begun are left out then.
    """
    with ThreadPoolExecutor(at_once, thread_name_prefix="endpoint") as threads:
        waiting: dict[Future[T], Item] = {}
        try:
            for item in items:
                waiting[threads.submit(work, item)] = item
                if len(waiting) >= 2 * at_once:
                    yield from _finished(waiting)
            while waiting:
                yield from _finished(waiting)
        finally:
            for future in waiting:
                future.cancel()


def _finished(waiting: dict[Future[T], Item]) -> Iterator[tuple[Item, T]]:
    done, _ = wait(waiting, return_when=FIRST_COMPLETED)
    for future in done:
        item = waiting.pop(future)
        yield item, future.result()


def image_part(png: bytes) -> dict[str, Any]:
    """A PNG as a part of a message's content."""
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(png).decode()}"}}


def without_thinking(answer: str) -> str:
    """An answer without the model's thinking, which a server may leave in it, before ``</think>``.

    The opening tag may be missing. Without a closing one, an answer that begins with ``<think>`` was cut off: nothing.
    """
    _, closed, said = answer.rpartition("</think>")
    return "" if not closed and answer.lstrip().startswith("<think>") else said


def _whole_text(data: Any) -> Any:
    """The same JSON data without half characters, such as those of an emoji that a limit of characters cut in two."""
    if isinstance(data, str):
        return data.encode("utf-8", "replace").decode()
    if isinstance(data, Mapping):
        return {name: _whole_text(value) for name, value in data.items()}
    return [_whole_text(each) for each in data] if isinstance(data, list | tuple) else data


def _read(path: Path) -> str | None:
    """A kept answer; None if there is none, or its file is damaged or of another version."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return str(data["answer"]) if data["schema"] == _SCHEMA else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
