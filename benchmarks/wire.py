"""What crosses between machines: bytes per episode against every turn's whole history, and the time of a call.

An episode has ``--turns`` turns; turn t is sampled from the t screenshots so far (random bytes, ``--kilobytes`` each)
and a prompt of 2,691 tokens per screenshot, as at 1920x1080. It is sampled by a ``bepa engine`` behind a real server on
this machine, whose engine takes no time, and its result goes to a queue behind another one. The bytes are those of
the sockets, both directions together. What it would be without hashes is counted, not sent: every turn's images and
token ids (8 bytes each) once to the engine, and the result's rows with theirs; ``x3`` is the same with each turn's
history sent three times. Before that: a worker and a rollout service in one Ray cluster, whose calls are pickled here
as Ray pickles them; without hashes a turn's history crosses three times (contexts, prompts back, prompts). The lines at
the end are ratios and medians.

    python -m benchmarks.wire --turns 15 --kilobytes 300 --episodes 4
"""

from __future__ import annotations

import argparse
import os
import pickle
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.data.step_rows import Turn, episode_rows
from bepa_torchrl.rollout.episodes import EpisodeJob, EpisodeResult
from bepa_torchrl.rollout.group_collector import RolloutSeeds
from bepa_torchrl.scale.engine.engine_interface import EngineOutput, EngineRow, EngineSpec
from bepa_torchrl.scale.engine.http.client import EngineClient
from bepa_torchrl.scale.engine.http.remote import RemoteEngine
from bepa_torchrl.scale.engine.http.server import EngineServer
from bepa_torchrl.scale.rollouts.env_worker import RolloutPlan
from bepa_torchrl.scale.rollouts.named_images import NamedService, NamingClient
from bepa_torchrl.scale.rollouts.queue_service import QueueService
from bepa_torchrl.scale.rollouts.remote.gateway import RolloutGateway
from bepa_torchrl.scale.rollouts.remote.queue_server import QueueServer
from bepa_torchrl.scale.rollouts.remote.weights import PublishedWeights, WeightsTag
from bepa_torchrl.scale.wire.access import Access
from bepa_torchrl.testing import lamp_task
from osworld_gym.types import PromptContext, StopReason, Verdict

TOKEN = b"a token of this benchmark"
PATCHES, RESPONSE = 2691, 90
PNG = b"\x89PNG\r\n\x1a\n"


class NoEngine:
    """An engine that takes no time."""

    concurrent, running = False, True

    def __init__(self, *_: Any) -> None:
        pass

    def start(self, model: Path) -> None: ...
    def reload(self, model: Path) -> None: ...
    def use_adapter(self, folder: Path) -> None: ...
    def stop(self) -> None: ...

    def generate(self, rows: Sequence[EngineRow]) -> list[EngineOutput]:
        tokens = torch.arange(RESPONSE)
        return [EngineOutput(tokens, torch.rand(RESPONSE), len(row.prompt.tokens), 0) for row in rows]


class Counter:
    """Forwards connections to a port of this machine, and counts their bytes."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.bytes, self._target = 0, target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            for ends in ((near, far), (far, near)):
                ends[0].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._forward, args=ends, daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 20):
                self.bytes += len(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            sink.close()

    def close(self) -> None:
        self._listener.close()


def play(turns: int, size: int) -> tuple[list[Turn], int]:
    """The turns of an episode, and the bytes of their histories."""
    images = [PNG + os.urandom(size - len(PNG)) for _ in range(turns)]
    made, history = [], 0
    for turn in range(turns):
        ids = torch.cat([torch.full((PATCHES,), 151655), torch.arange(200)]).repeat(turn + 1)
        prompt = Prompt(ids, tuple(images[: turn + 1]))
        made.append(Turn(images[turn], prompt, Response("click", torch.arange(RESPONSE), torch.rand(RESPONSE))))
        history += size * (turn + 1) + 8 * len(ids)
    return made, history


class Pickled:
    """The calls of an object as pickled arguments and answers, whose bytes are counted."""

    def __init__(self, target: Any) -> None:
        self.bytes, self._target = 0, target

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            sent = pickle.dumps(arguments, protocol=5)
            answer = pickle.dumps(getattr(self._target, name)(*pickle.loads(sent)), protocol=5)
            self.bytes += len(sent) + len(answer)
            return pickle.loads(answer)

        return call


class Renders:
    """A rollout service that takes no time: renders an episode's prompts in turn, with the context's images."""

    def __init__(self, turns: list[Turn]) -> None:
        self._turns = turns

    def render(self, contexts: Sequence[PromptContext]) -> list[Prompt | None]:
        return [Prompt(self._turns[len(each.screenshots) - 1].prompt.tokens, each.screenshots) for each in contexts]

    def sample(self, prompts: Sequence[Prompt], *_: Any) -> tuple[list[Response], int]:
        return [Response("click", torch.arange(RESPONSE), torch.rand(RESPONSE)) for _ in prompts], 0


def service_bytes(turns: list[Turn], *, named: bool) -> int:
    """What crosses between a worker and a rollout service of another process in an episode."""
    service: Any = Renders(turns)
    calls = Pickled(NamedService(service) if named else service)
    client: Any = NamingClient(calls) if named else calls
    for turn in turns:
        context = PromptContext("open the lamp", turn.prompt.images, (), None, ())
        client.sample(client.render([context]), [(0, 0)], 1.0)
    return calls.bytes


def result_of(turns: list[Turn]) -> EpisodeResult:
    """The episode's result."""
    rows = episode_rows(
        turns,
        task_id="lamp-0",
        instruction="open the lamp",
        group_id=0,
        slot=0,
        source=K.Source.on_policy,
        policy_version=0,
        reward=1.0,
        stop=StopReason.finished,
        plan_free=True,
    )
    return EpisodeResult(EpisodeJob(lamp_task(0), (0, 1), 5, 0), rows, StopReason.finished, Verdict(1.0))


def main() -> None:
    """Prints the bytes and the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--kilobytes", type=int, default=300)
    parser.add_argument("--episodes", type=int, default=4)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = folder / "model"
        model.mkdir()
        (model / "config.json").write_text("{}")
        server = stack.enter_context(
            closing(
                EngineServer(("127.0.0.1", 0), TOKEN, folder=folder / "weights", make_engine=NoEngine, version="none")
            )
        )
        near = stack.enter_context(closing(Counter(server.address)))
        spec = EngineSpec("float32", 1 << 17, 1, RESPONSE, 1.0, 151655, (0,), ())
        engine = RemoteEngine(EngineClient(Access(near.url, TOKEN)), spec)
        engine.start(model)

        plan = RolloutPlan((lamp_task(0),), RolloutSeeds(3, "group"), 1.0, 2)
        weights, queue = PublishedWeights("run"), QueueService(batch_groups=1, max_staleness=9)
        trainer = stack.enter_context(
            closing(QueueServer(queue, weights, plan, {}, address=("127.0.0.1", 0), token=TOKEN, note=lambda _: None))
        )
        far = stack.enter_context(closing(Counter(trainer.address)))
        gateway = stack.enter_context(closing(RolloutGateway(Access(far.url, TOKEN))))
        weights.publish([], 0)
        gateway.next_weights(WeightsTag("run", 0), (), 0.0)
        queue.admit([0, 0], options.episodes)

        sampled, sent, renewals = list[float](), list[float](), list[float]()
        whole = plain = named = 0
        near.bytes = far.bytes = 0
        for number in range(options.episodes):
            (lease,) = gateway.lease("w", 1, 30.0)
            turns, history = play(options.turns, options.kilobytes * 1000)
            whole += history
            plain += service_bytes(turns, named=False)
            named += service_bytes(turns, named=True)
            for turn in turns:
                start = time.perf_counter()
                engine.generate([EngineRow(turn.prompt, (number, 0), 1.0, RESPONSE)])
                sampled.append(time.perf_counter() - start)
            for _ in range(20):
                start = time.perf_counter()
                gateway.renew([lease.ticket])
                renewals.append(time.perf_counter() - start)
            start = time.perf_counter()
            gateway.complete(lease.ticket, result_of(turns))
            sent.append(time.perf_counter() - start)
        count = options.episodes
        print(f"{options.turns} turns, {options.kilobytes} kB per screenshot, MB per episode:")
        engine_mb, result_mb, history_mb = near.bytes / count / 1e6, far.bytes / count / 1e6, whole / count / 1e6
        print(f"  to the engine {engine_mb:.2f}, result {result_mb:.2f}; whole histories {history_mb:.1f} each")
        print(f"  a service of the Ray cluster {named / count / 1e6:.2f}; without hashes {plain / count / 1e6:.1f}")
        print(f"  ratio: service {named / plain:.3f}, service and result {(named + far.bytes) / (plain + whole):.3f};")
        print(
            f"    of one history per wire: engine {engine_mb / history_mb:.3f} (x3: {engine_mb / history_mb / 3:.3f}), "
            f"result {result_mb / history_mb:.3f}, together {(engine_mb + result_mb) / 2 / history_mb:.3f}"
        )
        print(
            f"median ms: turn {median(sampled) * 1e3:.1f}, result {median(sent) * 1e3:.1f}, "
            f"renewal {median(renewals) * 1e3:.2f}"
        )


if __name__ == "__main__":
    main()
