"""An :class:`EpisodeResult` with its rows as plain values, arrays, and images that are named by their hash.

Each distinct image crosses once, however many prompts and episodes show it; after decoding it is one object again. Of a
prompt only what follows the beginning that it shares with the row before it crosses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase, is_leaf_nontensor
from torch import Tensor

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import row_list, stack_rows
from bepa_torchrl.rollout.episodes import EpisodeJob, EpisodeResult
from bepa_torchrl.scale.wire.content import Blobs, pack_array, unpack_array
from bepa_torchrl.scale.wire.errors import ProtocolError
from bepa_torchrl.scale.wire.prompts import ImageNames, pack_tokens, unpack_tokens
from osworld_gym.errors import FailureReason
from osworld_gym.tasks.task import Task
from osworld_gym.types import StopReason, Verdict

Key = str | tuple[str, ...]

_TEXTS = (K.TASK_ID, K.INSTRUCTION, K.SOURCE, K.STOP_REASON, K.RESPONSE)
_INTEGERS = (K.GROUP_ID, K.SLOT, K.STEP, K.N_STEPS, K.POLICY_VERSION)
#: arrays of one dimension, as little-endian numbers
_ARRAYS: Mapping[Key, tuple[torch.dtype, str]] = {
    K.RESPONSE_TOKENS: (torch.int64, "<i8"),
    K.ROLLOUT_LOG_PROB: (torch.float32, "<f4"),
    K.OLD_LOG_PROB: (torch.float32, "<f4"),
}
_ROW: frozenset[Key] = frozenset(
    {*_TEXTS, *_INTEGERS, *_ARRAYS, K.PROMPT_TOKENS, K.RETURN, K.OFF_POLICY, K.SCREENSHOT, K.IMAGES}
)
_SHARED = "prompt_shared"  #: token ids at the beginning of a prompt that are those of the row before it
_NO_TOKENS = torch.empty(0, dtype=torch.int64)
_PNG = b"\x89PNG\r\n\x1a\n"


def encode_result(result: EpisodeResult) -> tuple[dict[str, Any], dict[bytes, bytes]]:
    """The result as fields of a request, and its images by their hash.

    The job is sent without its prefix, which the trainer has.

    Raises:
        ValueError: a row has an entry that the schema does not know, or lacks one.
    """
    job, verdict = result.job, result.verdict
    names = ImageNames()
    fields = {
        "job": {
            "task": job.task.id,
            "key": list(job.key),
            "env_seed": job.env_seed,
            "group_id": job.group_id,
            "slot": job.slot,
            "plan": job.plan,
            "handover": job.handover,
        },
        "rows": None if result.rows is None else _encode_rows(row_list(result.rows), names),
        "stop": result.stop.value,
        "verdict": None if verdict is None else [verdict.score, verdict.problem, verdict.exhausted, verdict.judge],
        "failure": None if result.failure is None else result.failure.value,
        "retried": [reason.value for reason in result.retried],
        "replayed": result.replayed,
        "mismatch": result.mismatch,
    }
    return fields, names.blobs()


def decode_result(fields: Mapping[str, Any], images: Blobs, tasks: Mapping[str, Task]) -> EpisodeResult:
    """The inverse of :func:`encode_result`.

    Args:
        fields: the fields of the request.
        images: by their hash.
        tasks: the run's tasks by id.

    Raises:
        ProtocolError: not the encoding of a result of one of these tasks.
    """
    try:
        job, rows, verdict = fields["job"], fields["rows"], fields["verdict"]
        return EpisodeResult(
            EpisodeJob(
                tasks[job["task"]],
                tuple(map(_integer, job["key"])),
                _integer(job["env_seed"]),
                _integer(job["group_id"]),
                _integer(job["slot"]),
                job["plan"],
                _integer(job["handover"]),
            ),
            None if rows is None else stack_rows(_decode_rows(rows, images)),
            StopReason(fields["stop"]),
            None if verdict is None else _verdict(verdict),
            None if fields["failure"] is None else FailureReason(fields["failure"]),
            tuple(FailureReason(reason) for reason in fields["retried"]),
            replayed=_integer(fields["replayed"]),
            mismatch=bool(fields["mismatch"]),
        )
    except ProtocolError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"expected the result of an episode: {type(error).__name__}: {error}") from error


def _verdict(fields: Sequence[Any]) -> Verdict:
    return Verdict(float(fields[0]), str(fields[1]), bool(fields[2]), str(fields[3]))


def _encode_rows(rows: Sequence[TensorDictBase], names: ImageNames) -> list[dict[str, Any]]:
    encoded, before = [], _NO_TOKENS
    for row in rows:
        fields, prompt = _encode_row(row, names), cast(Tensor, row.get(K.PROMPT_TOKENS)).cpu()
        shared = _shared(before, prompt)
        encoded.append(fields | {_SHARED: shared, _name(K.PROMPT_TOKENS): pack_tokens(prompt[shared:])})
        before = prompt
    return encoded


def _decode_rows(encoded: Sequence[Mapping[str, Any]], images: Blobs) -> list[TensorDictBase]:
    rows: list[TensorDictBase] = []
    before = _NO_TOKENS
    for fields in encoded:
        row, shared = _decode_row(fields, images), _integer(fields[_SHARED])
        if not 0 <= shared <= len(before):
            raise ProtocolError(f"expected 0 to {len(before)} token ids of the prompt before, got {shared}")
        before = torch.cat([before[:shared], unpack_tokens(fields[_name(K.PROMPT_TOKENS)])])
        row.set(K.PROMPT_TOKENS, before)
        rows.append(row)
    return rows


def _shared(one: Tensor, other: Tensor) -> int:
    """How many token ids at the beginning are equal."""
    length = min(len(one), len(other))
    differ = torch.nonzero(one[:length] != other[:length])
    return int(differ[0]) if len(differ) else length


def _encode_row(row: TensorDictBase, names: ImageNames) -> dict[str, Any]:
    """All but the prompt."""
    entries = set(row.keys(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor))
    if entries != _ROW:
        odd = sorted(map(_name, entries ^ _ROW))
        raise ValueError(f"expected rows with the entries of an episode, these differ: {', '.join(odd)}")
    encoded: dict[str, Any] = {key: row[key] for key in _TEXTS}
    encoded |= {key: int(cast(Tensor, row.get(key))) for key in _INTEGERS}
    for key, (_, numbers) in _ARRAYS.items():
        encoded[_name(key)] = pack_array(cast(Tensor, row.get(key)).cpu().numpy(), numbers)
    encoded[K.RETURN] = float(cast(Tensor, row.get(K.RETURN)))
    encoded[K.OFF_POLICY] = bool(row.get(K.OFF_POLICY))
    encoded[K.SCREENSHOT] = names[cast(bytes, row[K.SCREENSHOT])]
    encoded[K.IMAGES] = [names[image] for image in cast(Sequence[bytes], row[K.IMAGES])]
    return encoded


def _decode_row(encoded: Mapping[str, Any], images: Blobs) -> TensorDictBase:
    expected = {_SHARED, *map(_name, _ROW)}
    if encoded.keys() != expected:
        odd = sorted(encoded.keys() ^ expected)
        raise ProtocolError(f"expected the entries of a row, these differ: {', '.join(odd)[:200]}")
    row: dict[Any, Any] = {key: NonTensorData(_text(encoded[key])) for key in _TEXTS}
    row |= {key: torch.tensor(_integer(encoded[key])) for key in _INTEGERS}
    row |= {
        key: torch.from_numpy(unpack_array(encoded[_name(key)], numbers)).to(dtype)
        for key, (dtype, numbers) in _ARRAYS.items()
    }
    lengths = {row[key].shape[0] for key in (K.RESPONSE_TOKENS, K.ROLLOUT_LOG_PROB, K.OLD_LOG_PROB)}
    if len(lengths) != 1:
        raise ProtocolError(f"expected a log-prob per token of a response, got the lengths {sorted(lengths)}")
    row[K.RETURN] = torch.tensor([float(encoded[K.RETURN])], dtype=torch.float32)
    row[K.OFF_POLICY] = torch.tensor([bool(encoded[K.OFF_POLICY])])
    row[K.SCREENSHOT] = NonTensorData(_png(images, encoded[K.SCREENSHOT]))
    row[K.IMAGES] = NonTensorData(tuple(_png(images, name) for name in encoded[K.IMAGES]))
    return TensorDict(row, batch_size=[])


def _name(key: Key) -> str:
    return key if isinstance(key, str) else ".".join(key)


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise ProtocolError(f"expected an integer, got {str(value)[:200]!r}")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ProtocolError(f"expected text, got {str(value)[:200]!r}")
    return value


def _png(images: Blobs, name: Any) -> bytes:
    png = images.get(name) if type(name) is bytes else None
    if png is None:
        raise ProtocolError(f"expected the hash of one of {len(images)} images, got {str(name)[:80]}")
    if not png.startswith(_PNG):
        raise ProtocolError(f"expected a PNG image, got {len(png)} bytes that begin with {png[:8]!r}")
    return png
