"""Files on this machine or in an object store: found by one path, written whole, checked when read, held by one writer.

A place is a `Location`, and the functions here take one wherever it is. Three locks are for three things: `hold` is the
lease of the one writer of a run or a data set, told to people; `caches.lock_of` lets those wait who would make the same
cache; and what is written aside is locked by its writer, so that only what a dead one left is removed.
"""

from ray_atr.common.storage.appended import append_line as append_line
from ray_atr.common.storage.appended import newest_lines as newest_lines
from ray_atr.common.storage.appended import read_appended as read_appended
from ray_atr.common.storage.atomic import atomic_file as atomic_file
from ray_atr.common.storage.atomic import disk_errors as disk_errors
from ray_atr.common.storage.atomic import remove_folder as remove_folder
from ray_atr.common.storage.atomic import sync_folder as sync_folder
from ray_atr.common.storage.digests import DamagedFileError as DamagedFileError
from ray_atr.common.storage.digests import lost_seal as lost_seal
from ray_atr.common.storage.digests import read_bytes as read_bytes
from ray_atr.common.storage.digests import read_json as read_json
from ray_atr.common.storage.digests import read_lines as read_lines
from ray_atr.common.storage.digests import read_text as read_text
from ray_atr.common.storage.digests import write_bytes as write_bytes
from ray_atr.common.storage.digests import write_json as write_json
from ray_atr.common.storage.digests import write_lines as write_lines
from ray_atr.common.storage.digests import write_text as write_text
from ray_atr.common.storage.files import files_below as files_below
from ray_atr.common.storage.files import read_ranges as read_ranges
from ray_atr.common.storage.files import remove_all as remove_all
from ray_atr.common.storage.files import rename as rename
from ray_atr.common.storage.files import whole_file as whole_file
from ray_atr.common.storage.locations import Location as Location
from ray_atr.common.storage.locations import StorageError as StorageError
from ray_atr.common.storage.locations import entries_in as entries_in
from ray_atr.common.storage.locations import file_exists as file_exists
from ray_atr.common.storage.locations import is_local as is_local
from ray_atr.common.storage.locations import locate as locate
from ray_atr.common.storage.locations import make_folder as make_folder
from ray_atr.common.storage.locations import names_in as names_in
from ray_atr.common.storage.locations import safe_name as safe_name
from ray_atr.common.storage.lock import hold as hold
from ray_atr.common.storage.transfer import atomic_folder as atomic_folder
from ray_atr.common.storage.transfer import fetched as fetched
from ray_atr.common.storage.transfer import sent as sent
