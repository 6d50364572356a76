"""Object stores: bytes under keys in a folder, on a NAS, S3, Azure Blob, or any other fsspec file system."""

from bepa_torchrl.scale.store.objects.base import ObjectStore, StorageError, StorageURLError
from bepa_torchrl.scale.store.objects.url import open_store

__all__ = ["ObjectStore", "StorageError", "StorageURLError", "open_store"]
