"""Write the wiring that a probe found into the drafter's config."""

from __future__ import annotations

from sglang_kimi_eagle.drafter import Drafter
from sglang_kimi_eagle.pinning import PinRefused, pin_states, write_in_place
from sglang_kimi_eagle.probing.findings import NOT_WRITTEN, ProbeRefused
from sglang_kimi_eagle.probing.report import Report
from sglang_kimi_eagle.states import show
from sglang_kimi_eagle.wiring import read_ids


def write_pin(drafter: Drafter, report: Report) -> str:
    """Pin the best wiring in place, keeping a backup; return what was written, for people.

    Raises:
        ProbeRefused: the verdict is not clear, no release captures such states, or the config
            cannot be written.
    """
    best = report.best
    if not report.clear or not best.reachable:
        reason = (
            "The verdict is not clear."
            if not report.clear
            else f"SGLang {report.sglang} cannot capture {show(best.states)}."
        )
        raise ProbeRefused(
            NOT_WRITTEN.found(
                f"Nothing was written. {reason}",
                where=drafter.config_path,
                seen=report.verdict,
                mend="Record more tokens, or pin by hand: sglang-kimi-eagle pin."
                if not report.clear
                else "Reorder the columns of fc.weight, or use another drafter.",
            )
        )
    pin = pin_states(best.states, read_ids(drafter.config).effective)
    try:
        backup = write_in_place(drafter.folder, pin.applied_to(drafter.config))
    except PinRefused as refused:
        raise ProbeRefused(refused.finding) from refused
    return (
        f"ids {list(pin.ids)}, {pin.convention.value}, {show(best.states)} in "
        f"{drafter.config_path} (before: {backup.name})"
    )
