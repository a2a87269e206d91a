"""Files on this machine or in an object store: one kind of path, atomic writes, checked reads, one writer at a time.

All functions take a `Location`, local or remote. There are three kinds of locks: `hold` for the only writer of a run or a data
set, whose name the error shows; `caches.lock_of` for processes that would make the same cache; and a lock on each temporary
file, so that only those of dead writers are removed.
"""

from ray_atr.common.appended import append_line, newest_lines, read_appended
from ray_atr.common.atomic import atomic_file, disk_errors, remove_folder, sync_folder
from ray_atr.common.digests import (
    DamagedFileError,
    missing_digest,
    read_bytes,
    read_json,
    read_text,
    write_bytes,
    write_json,
    write_lines,
    write_text,
)
from ray_atr.common.locations import (
    Location,
    StorageError,
    changed_at,
    complete_file,
    entries_in,
    file_exists,
    files_below,
    is_local,
    locate,
    make_folder,
    names_in,
    opened,
    read_ranges,
    remove_all,
    rename,
    require_new,
    require_replaceable,
    require_writable,
    safe_name,
)
from ray_atr.common.lock import hold
from ray_atr.common.transfer import atomic_folder, fetched, sent
