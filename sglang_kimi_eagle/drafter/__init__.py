"""Read a drafter's checkpoint: its config, its safetensors headers, its vocabulary maps.

Reads are bounded, nothing is unpickled or imported, and no path leaves the folder but by the
Hugging Face cache's own links.
"""

from sglang_kimi_eagle.drafter.checkpoint import Drafter, read_drafter
from sglang_kimi_eagle.drafter.config import read_config
from sglang_kimi_eagle.drafter.headers import TensorHeader
from sglang_kimi_eagle.drafter.problems import UnreadableDrafter

__all__ = ["Drafter", "TensorHeader", "UnreadableDrafter", "read_config", "read_drafter"]
