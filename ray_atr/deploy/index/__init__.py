"""An archive of sounds as an index: built and brought up to date from files, and asked by text or by sound."""

from ray_atr.deploy.index.build import Changes as Changes
from ray_atr.deploy.index.build import build_index as build_index
from ray_atr.deploy.index.build import update_index as update_index
from ray_atr.deploy.index.opened import Index as Index
from ray_atr.deploy.index.search import Match as Match
from ray_atr.deploy.index.shards import ShardedIndex as ShardedIndex
from ray_atr.deploy.index.shards import open_shards as open_shards
