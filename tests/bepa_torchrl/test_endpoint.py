"""ChatModel against a real HTTP server: retries, refusals, the cache, and endpoints that are none."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_server import Reply, chat_server

from bepa_torchrl.endpoint import AnswerError, ChatModel, Endpoint, EndpointError, asked

MESSAGES = [{"role": "user", "content": "How many?"}]


def number(text: str) -> int:
    if not text.strip().isdigit():
        raise ValueError("expected a number")
    return int(text)


def replies(*given: Reply) -> Callable[[dict[str, Any]], Reply]:
    """One after the other, the last one for ever; safe between threads."""
    left, lock = list(given), threading.Lock()

    def script(_: dict[str, Any]) -> Reply:
        with lock:
            return left.pop(0) if len(left) > 1 else left[0]

    return script


SOON = {"retry-after-ms": "1"}


def test_an_answer_is_checked_counted_and_kept(tmp_path: Path) -> None:
    with chat_server(replies(Reply("7"))) as server:
        endpoint = Endpoint("m", server.url, price=(1.0, 10.0))
        model = ChatModel(endpoint, tmp_path / "cache")
        assert model.ask(MESSAGES, number, what="t1") == 7
        assert (server.requests[0]["model"], server.requests[0]["temperature"]) == ("m", 0.0)
        assert model.usage.cost(endpoint.price) == pytest.approx((100 * 1 + 20 * 10) / 1e6)
        again = ChatModel(endpoint, tmp_path / "cache")
        assert again.ask(MESSAGES, number, what="t1") == 7
        assert (len(server.requests), again.usage.cached, again.usage.requests) == (1, 1, 0)
        other = ChatModel(Endpoint("m", server.url, temperature=0.5), tmp_path / "cache")
        assert other.ask(MESSAGES, number, what="t1") == 7
        assert len(server.requests) == 2


def test_a_damaged_answer_is_asked_for_again(tmp_path: Path) -> None:
    with chat_server(replies(Reply("7"), Reply("8"))) as server:
        model = ChatModel(Endpoint("m", server.url), tmp_path)
        model.ask(MESSAGES, number, what="t1")
        (path,) = tmp_path.glob("*/*.json")
        path.write_bytes(path.read_bytes()[:10])
        assert model.ask(MESSAGES, number, what="t1") == 8
        assert model.ask(MESSAGES, number, what="t1") == 8


def test_an_answer_of_no_use_is_asked_for_again_then_refused(tmp_path: Path) -> None:
    with chat_server(replies(Reply("seven"), Reply(""), Reply("7"))) as server:
        model = ChatModel(Endpoint("m", server.url), tmp_path)
        assert model.ask(MESSAGES, number, what="t1") == 7
        assert (model.usage.requests, model.usage.refused) == (3, 2)
        assert model.ask(MESSAGES, number, what="t1") == 7  # all three from the cache
        assert len(server.requests) == 3
    with chat_server(replies(Reply("<html>no</html>"))) as server:
        model = ChatModel(Endpoint("m", server.url, asks=2))
        with pytest.raises(
            AnswerError, match=r"trace of t1: 2 answers of m were of no use, the last: expected a number"
        ):
            model.ask(MESSAGES, number, what="trace of t1")


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_what_passes_is_retried(status: int) -> None:
    with chat_server(
        replies(Reply("busy", status, headers=SOON), Reply("busy", status, headers=SOON), Reply("7"))
    ) as s:
        assert ChatModel(Endpoint("m", s.url)).ask(MESSAGES, number, what="t1") == 7
        assert len(s.requests) == 3


@pytest.mark.parametrize("status", [400, 401, 404])
def test_what_does_not_pass_is_one_error(status: int) -> None:
    with chat_server(replies(Reply("no such model", status))) as server:
        with pytest.raises(EndpointError, match=rf"m at http://127.0.0.1:\d+/v1/?: status {status}: .*no such model"):
            ChatModel(Endpoint("m", server.url)).ask(MESSAGES, number, what="t1")
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "reply",
    [
        Reply("<html><title>Welcome</title></html>", raw=True),
        Reply("not json", raw=True, kind="application/json"),
        Reply('{"object": "list", "data": []}', raw=True, kind="application/json"),
        Reply("[1, 2]", raw=True, kind="application/json"),
        Reply("", raw=True, kind="application/json"),
    ],
)
def test_what_is_no_chat_endpoint_is_named(reply: Reply) -> None:
    with chat_server(replies(reply)) as server, pytest.raises(EndpointError, match="expected a chat completion"):
        ChatModel(Endpoint("m", server.url)).ask(MESSAGES, number, what="t1")


def test_an_endpoint_that_is_down_or_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        port = silent.getsockname()[1]
        endpoint = Endpoint("m", f"http://127.0.0.1:{port}/v1", timeout=0.2, retries=0)
        with pytest.raises(EndpointError, match=r"no answer within 0\.2 s, 1 times"):
            ChatModel(endpoint).ask(MESSAGES, number, what="t1")
    endpoint = Endpoint("m", f"http://127.0.0.1:{port}/v1", retries=0)
    with pytest.raises(EndpointError, match=r"no connection \(.*refused.*\), 1 times; is it running\?"):
        ChatModel(endpoint).ask(MESSAGES, number, what="t1")


def test_without_a_key_for_openai(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(EndpointError, match="the environment variable OPENAI_API_KEY has no key; set it"):
        ChatModel(Endpoint("gpt"))


def test_at_most_n_requests_are_open() -> None:
    gate = threading.Event()
    with chat_server(replies(Reply("7", hold=gate))) as server:
        model = ChatModel(Endpoint("m", server.url, at_once=3))
        found: list[tuple[int, int]] = []

        def all_of_them() -> None:
            found.extend(asked(range(9), lambda _: model.ask(MESSAGES, number, what="t"), at_once=6))

        thread = threading.Thread(target=all_of_them)
        thread.start()
        for _ in range(500):
            if server.open == 3:
                break
            thread.join(0.02)
        gate.set()
        thread.join(30.0)
        assert sorted(found) == [(i, 7) for i in range(9)]
        assert server.most == 3


def test_an_error_ends_the_work_and_keeps_what_was_done(tmp_path: Path) -> None:
    def script(request: dict[str, Any]) -> Reply:
        return Reply("gone", 401) if request["messages"][0]["content"] == "5" else Reply("7")

    def items() -> Iterator[str]:
        yield from map(str, range(100))

    with chat_server(script) as server:
        model = ChatModel(Endpoint("m", server.url, at_once=1), tmp_path)

        def work(text: str) -> int:
            return model.ask([{"role": "user", "content": text}], number, what=text)

        with pytest.raises(EndpointError, match="401"):
            list(asked(items(), work, at_once=1))
        assert len(server.requests) <= 8
        assert len(list(tmp_path.glob("*/*.json"))) >= 5


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"at_once": 0}, "at_once must be at least 1"),
        ({"timeout": float("nan")}, "expected timeout > 0 and temperature >= 0, got nan and 0"),
        ({"base_url": "127.0.0.1:8000"}, r"expected a URL such as http://127\.0\.0\.1:8000/v1, got '127"),
        ({"base_url": "http://user:secret@host/v1"}, "what stands before '@' in its URL would be recorded; set OPENAI"),
        ({"timeout": 0.0}, "timeout > 0"),
        ({"model": ""}, "an empty one"),
    ],
)
def test_values_out_of_range(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Endpoint(**{"model": "m", **values})
