"""Copies of a run's folder in an object store: whole snapshots, uploaded in the background."""

from bepa_torchrl.storage.mirror.restore import restore
from bepa_torchrl.storage.mirror.snapshot import RunStore, Snapshot, SnapshotError
from bepa_torchrl.storage.mirror.uploader import RunUploader

__all__ = ["RunStore", "RunUploader", "Snapshot", "SnapshotError", "restore"]
