"""torchaudio, as the reference of filter banks, also beside a torch that was built with another CUDA.

torchaudio's last version refuses to be imported there because of its compiled parts, of which tests use none: what they compare
with is its Python code. Import this module before torchaudio, or before a model of transformers that imports it.
"""

from __future__ import annotations

import torch

_built_with, torch.version.cuda = torch.version.cuda, None
try:
    import torchaudio
    from torchaudio.compliance import kaldi
    from torchaudio.functional import melscale_fbanks
finally:
    torch.version.cuda = _built_with

__all__ = ["kaldi", "melscale_fbanks", "torchaudio"]
