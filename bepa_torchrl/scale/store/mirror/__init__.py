"""Copies of a run's folder in an object store: whole snapshots, uploaded in the background."""

from bepa_torchrl.scale.store.mirror.restore import restore, retried
from bepa_torchrl.scale.store.mirror.snapshot import RunStore, Snapshot, SnapshotError
from bepa_torchrl.scale.store.mirror.uploader import RunUploader

__all__ = ["RunStore", "RunUploader", "Snapshot", "SnapshotError", "restore", "retried"]
