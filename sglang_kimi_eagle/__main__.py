"""``python -m sglang_kimi_eagle``."""

from sglang_kimi_eagle.cli import main

main()
