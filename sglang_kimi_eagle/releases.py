"""What each SGLang release does with an EAGLE-3 drafter for Kimi-K2.5: one row each.

The rows are facts read in the wheels; `tests/test_releases.py` reads the sources of every release
again and compares.  A running SGLang is judged by its own code (`upstream.inspect`), not by its
version; the table serves the tools that talk about releases that are not installed.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from sglang_kimi_eagle.states import Convention, LayerId, States, default_states, states_of


class SetterRule(str, enum.Enum):
    """How ``DeepseekV2ForCausalLM.set_eagle3_layers_to_capture`` reads explicit ids."""

    ALWAYS_OUTPUT = "every id k is h[k+1]"
    """0.5.9 - 0.5.12.post1."""
    OUTPUT_IF_FIRST_IS_ONE = "h[k+1] when the first id is 1, otherwise h[k]"
    """0.5.13 and later (sglang#25454)."""
    ALWAYS_INPUT = "every id k is h[k]"
    """No setter of the table; that of a target for which the plugin brings the setter."""

    def convention(self, ids: Sequence[LayerId]) -> Convention:
        """Return the convention that this rule reads ``ids`` under."""
        if self is SetterRule.ALWAYS_INPUT:
            return Convention.LAYER_INPUT
        if self is SetterRule.ALWAYS_OUTPUT or (len(ids) > 0 and ids[0] == 1):
            return Convention.LAYER_OUTPUT
        return Convention.LAYER_INPUT


@dataclass(frozen=True)
class Release:
    """The behaviour of one SGLang release."""

    version: str
    wrapper_methods: bool
    """``KimiK25ForConditionalGeneration`` has the three methods of `delegations`."""
    plugin_framework: bool
    """``sglang.srt.plugins`` exists; without it the start-up hook is used."""
    setter_rule: SetterRule
    captures_embedding: bool
    """h[0] can be captured (before 0.5.14: ``hidden_states + None`` is a TypeError)."""
    graphs_reset_ids: bool
    """Graphs are captured after a call of the setter without ids (defect A)."""
    partial_sums: bool
    """A captured state may lack its all-reduce under FlashInfer fusion with TP > 1 (defect B)."""
    mla_drafter: bool
    """``Eagle3DeepseekV2ForCausalLM`` is registered."""
    captures_last: bool = False
    """h[n] can be captured: for targets that are captured after a layer, not before one."""

    def stock_states(self, ids: Sequence[LayerId] | None, num_layers: int) -> States:
        """Return what unmodified SGLang captures for the nested ``ids`` of a draft config.

        ``None`` is what SGLang makes of every config it cannot read.  Duplicates and states that
        are never reached (h[n], and h[0] where it cannot be captured) are left as they are: the
        caller checks them against `reachable`.
        """
        if ids is None:
            return default_states(num_layers)
        return states_of(ids, self.setter_rule.convention(ids))

    def reachable(self, num_layers: int) -> range:
        """Return the states that this release can capture.

        For Kimi-K2.5 h[n] is never one: ``DeepseekV2Model.forward`` captures before layer i, for
        i in 0..n-1.
        """
        return range(
            0 if self.captures_embedding else 1, num_layers + (1 if self.captures_last else 0)
        )


def _row(
    version: str,
    *,
    methods: bool = True,
    framework: bool = True,
    rule: SetterRule = SetterRule.OUTPUT_IF_FIRST_IS_ONE,
    embedding: bool = True,
    graphs_reset_ids: bool = False,
    partial_sums: bool = False,
    mla: bool = True,
) -> Release:
    return Release(
        version, methods, framework, rule, embedding, graphs_reset_ids, partial_sums, mla
    )


_PLUS_ONE = SetterRule.ALWAYS_OUTPUT

RELEASES: dict[str, Release] = {
    release.version: release
    for release in (
        _row(
            "0.5.9",
            methods=False,
            framework=False,
            rule=_PLUS_ONE,
            embedding=False,
            graphs_reset_ids=True,
            partial_sums=True,
            mla=False,
        ),
        *(
            _row(
                version,
                framework=False,
                rule=_PLUS_ONE,
                embedding=False,
                graphs_reset_ids=True,
                partial_sums=True,
                mla=False,
            )
            for version in ("0.5.10", "0.5.10.post1")
        ),
        _row("0.5.11", rule=_PLUS_ONE, embedding=False, partial_sums=True, mla=False),
        *(
            _row(version, rule=_PLUS_ONE, embedding=False, partial_sums=True)
            for version in ("0.5.12", "0.5.12.post1")
        ),
        *(
            _row(version, embedding=False, partial_sums=True)
            for version in ("0.5.13", "0.5.13.post1")
        ),
        *(
            _row(version)
            for version in (
                "0.5.14",
                "0.5.15",
                "0.5.15.post1",
                "0.5.16",
                "0.5.17",
                "0.5.18",
                "0.5.19",
                "0.5.20",
                "0.5.21",
                "0.5.22",
                "0.5.23",
            )
        ),
    )
}
"""Every release with a Kimi-K2.5 model, oldest first."""

OLDEST, NEWEST = next(iter(RELEASES)), next(reversed(RELEASES))


def spans(versions: Sequence[str]) -> str:
    """Format versions of the table as ranges: ``0.5.9 - 0.5.12.post1, 0.5.14``."""
    order = list(RELEASES)
    positions = sorted(order.index(version) for version in versions)
    runs: list[tuple[int, int]] = []
    for position in positions:
        if runs and position == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], position)
        else:
            runs.append((position, position))
    return ", ".join(
        order[first] if first == last else f"{order[first]} - {order[last]}" for first, last in runs
    )
