"""A language pack: texts in many languages fitted to a space of audio vectors that exists and stays as it is."""

from ray_atr.deploy.pack.making import Pack as Pack
from ray_atr.deploy.pack.making import make_pack as make_pack
