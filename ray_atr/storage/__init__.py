"""Files on this machine or in an object store: found by one path, written whole, checked when read, held by one writer."""

from ray_atr.storage.digests import DamagedFileError
from ray_atr.storage.folder import Folder, open_folder
from ray_atr.storage.lock import hold
from ray_atr.storage.places import (
    Location,
    StorageError,
    entries_in,
    is_local,
    is_there,
    locate,
    make_folder,
    safe_name,
)
from ray_atr.storage.records import (
    read_bytes,
    read_json,
    read_lines,
    read_text,
    write_bytes,
    write_json,
    write_lines,
    write_text,
)
from ray_atr.storage.transfer import fetched, sent, whole_folder
from ray_atr.storage.whole import disk_errors, remove_folder, sync_folder, whole_file

__all__ = [
    "DamagedFileError",
    "Folder",
    "Location",
    "StorageError",
    "disk_errors",
    "entries_in",
    "fetched",
    "hold",
    "is_local",
    "is_there",
    "locate",
    "make_folder",
    "open_folder",
    "read_bytes",
    "read_json",
    "read_lines",
    "read_text",
    "remove_folder",
    "safe_name",
    "sent",
    "sync_folder",
    "whole_file",
    "whole_folder",
    "write_bytes",
    "write_json",
    "write_lines",
    "write_text",
]
