"""Files on this machine or in an object store: found by one path, written whole, checked when read, held by one writer.

A place is a `Location`, and the functions here take one wherever it is. Three locks are for three things: `hold` is the
lease of the one writer of a run or a data set, told to people; `caches.lock_of` lets those wait who would make the same
cache; and what is written aside is locked by its writer, so that only what a dead one left is removed.
"""

from ray_atr.common.appended import append_line, newest_lines, read_appended
from ray_atr.common.atomic import atomic_file, disk_errors, remove_folder, sync_folder
from ray_atr.common.digests import (
    DamagedFileError,
    lost_seal,
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
    entries_in,
    file_exists,
    files_below,
    is_local,
    locate,
    make_folder,
    names_in,
    read_ranges,
    remove_all,
    rename,
    safe_name,
    whole_file,
)
from ray_atr.common.lock import hold
from ray_atr.common.transfer import atomic_folder, fetched, sent
