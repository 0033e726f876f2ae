"""One documentation page per diagnostic code.

``python -m sglang_kimi_eagle.diagnostic_pages docs/diagnostics`` writes them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from sglang_kimi_eagle.diagnostics import Rule, rules
from sglang_kimi_eagle.mends import mends

_PACKAGE = Path(__file__).parent
_GROUPS = {
    "KE0": "Installation, SGLang and environment",
    "KE1": "Files and config",
    "KE2": "Layer ids and wiring",
    "KE3": "Architecture and tensors",
    "KE4": "Vocabulary",
    "KE5": "Launch arguments",
    "KE6": "Drafter and target",
    "KE7": "Pins and patches",
    "KE8": "Measuring: trace, identify, probe, watch",
}


def all_rules() -> Sequence[Rule]:
    """Return every rule of the package, whichever module declares it."""
    for path in sorted(_PACKAGE.rglob("*.py")):
        if " = rule(\n" in path.read_text("utf-8"):
            parts = path.relative_to(_PACKAGE.parent).with_suffix("").parts
            importlib.import_module(".".join(parts))
    return rules()


def pages() -> dict[str, str]:
    """Return file name -> Markdown of every page and of the list of them."""
    found = all_rules()
    known = mends()
    result = {f"{rule.code}.md": _page(rule, known.get(rule.code, [])) for rule in found}
    lines = ["# Diagnostics", "", "Made by `python -m sglang_kimi_eagle.diagnostic_pages`.", ""]
    group = ""
    for rule in found:
        if rule.code[:3] != group:
            group = rule.code[:3]
            lines += ["", f"## {_GROUPS.get(group, group)}", "", "| code | name | severity |"]
            lines.append("|---|---|---|")
        lines.append(f"| [{rule.code}]({rule.code}.md) | {rule.name} | {rule.severity.value} |")
    result["README.md"] = "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"
    return result


def _page(rule: Rule, known: Sequence[str]) -> str:
    lines = [f"# {rule.code} {rule.name}", "", f"Severity: {rule.severity.value}.", ""]
    lines += [rule.summary, ""]
    if rule.example:
        # An example in words has its code marked already.
        prose = "`" in rule.example or rule.example.endswith(".")
        lines += ["## Example", ""]
        lines += [rule.example] if prose else ["```", rule.example, "```"]
        lines.append("")
    if known:
        lines += ["## Mend", "", *(f"- {mend}" for mend in known), ""]
    lines += [f"`sglang-kimi-eagle doctor --explain {rule.code}` prints this page.", ""]
    return "\n".join(lines)


def write(folder: Path) -> None:
    """Write every page into ``folder``, and delete pages of codes that are gone."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = pages()
    for path in folder.glob("KE*.md"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, "utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
