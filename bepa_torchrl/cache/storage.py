"""The cache's storage: a list of traces from which slots can be removed, and whose state includes text and images."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase, lazy_stack

from bepa_torchrl.storage import PlainRow, plain_row, row_from_plain
from bepa_torchrl.torchrl_private import RemovableListStorage


class TraceStorage(RemovableListStorage):
    """A list of traces ``[S]`` of different lengths; clones on writing and on reading."""

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Stores a copy of one trace at an integer slot, or of several at a sequence of slots."""
        super().set(cursor, data.clone() if isinstance(data, TensorDictBase) else data, set_cursor=set_cursor)

    def get(self, index: Any) -> Any:
        """A copy of the trace at an integer slot; a list of copies for a slice or a sequence of slots."""
        traces = super().get(index)
        return [trace.clone() for trace in traces] if isinstance(traces, list) else traces.clone()

    def state_dict(self) -> dict[str, Any]:
        """The traces as lists of plain rows (TorchRL's would lose their text)."""
        return {"_storage": [plain_trace(trace) for trace in self.items]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The inverse of :meth:`state_dict`."""
        self.replace([trace_from_plain(rows) for rows in state_dict["_storage"]])


def plain_trace(trace: TensorDictBase) -> list[PlainRow]:
    """A trace ``[S]`` as a list of plain rows."""
    return [plain_row(row) for row in trace.unbind(0)]


def trace_from_plain(rows: list[PlainRow]) -> TensorDictBase:
    """The inverse of :func:`plain_trace`."""
    return lazy_stack([row_from_plain(row) for row in rows])
