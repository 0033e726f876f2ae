"""Write what `sglang-kimi-eagle sweep` knows of the releases, from their wheels.

PYTHONPATH=tests python -m regenerate_sweep
"""

from __future__ import annotations

import json

import sglang_kimi_eagle
from interpreters import ROOT
from sglang_kimi_eagle import extending, sweeping
from sglang_kimi_eagle.releases import RELEASES
from sglang_kimi_eagle.upstream import Sources
from wheels import unpacked


def main() -> None:
    adapted = frozenset(extending.adapters())
    table = sweeping.table_of(
        sweeping.sweep(Sources(unpacked(version), version), adapted) for version in RELEASES
    )
    path = ROOT / sglang_kimi_eagle.__name__ / sweeping.TABLE
    path.write_text(json.dumps(table, separators=(",", ":")).replace("},{", "},\n{") + "\n")


if __name__ == "__main__":
    main()
