"""The one vocabulary for captured hidden states, and its conversions to layer ids.

A *state* ``k`` stands for h[k], the residual stream after ``k`` decoder layers: Hugging Face
``hidden_states[k]``, the input of 0-based layer ``k``, the output of 0-based layer ``k - 1``.
h[0] is the embedding; h[n] is the last layer's output before the final norm.

A *layer id* is what a drafter's config says.  A *convention* turns ids into states.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

IDS_KEY = "eagle_aux_hidden_state_layer_ids"
"""Where a drafter's config has its layer ids: SGLang reads it below ``eagle_config``."""

MAX_STATES = 64
"""More states than any drafter takes; longer lists are not looked at."""

State = int
LayerId = int
States = tuple[State, ...]


class Convention(str, enum.Enum):
    """What a layer id means.

    The values are those of ``eagle_config.layer_id_convention``.
    """

    LAYER_OUTPUT = "layer_output"
    """Id k is the output of 0-based layer k: h[k + 1]."""

    LAYER_INPUT = "layer_input"
    """Id k is the input of 0-based layer k: h[k]."""

    @property
    def shift(self) -> int:
        """The number added to an id to get its state."""
        return 1 if self is Convention.LAYER_OUTPUT else 0


def states_of(ids: Sequence[LayerId], convention: Convention) -> States:
    """Return the states that ``ids`` name under ``convention``, in the order of ``ids``."""
    return tuple(layer_id + convention.shift for layer_id in ids)


def ids_of(states: Sequence[State], convention: Convention) -> tuple[LayerId, ...]:
    """Return the ids that name ``states`` under ``convention``; inverse of `states_of`.

    Raises:
        ValueError: h[0] has no id under ``layer_output``: no layer outputs the embedding.
    """
    ids = tuple(state - convention.shift for state in states)
    if any(layer_id < 0 for layer_id in ids):
        raise ValueError(f"h[0] is no layer's output: {list(states)} has no {convention.value} ids")
    return ids


def default_states(num_layers: int) -> States:
    """Return the states the engine captures when a drafter gives no ids.

    SGLang 0.5.9 - 0.5.23, ``srt/models/deepseek_v2.py``, ``set_eagle3_layers_to_capture(None)``.
    For the 61 layers of Kimi-K2.5: h[2], h[30], h[58].
    """
    return (2, num_layers // 2, num_layers - 3)


def show(states: Sequence[State]) -> str:
    """Format states for people: ``h[3], h[31], h[59]``."""
    return ", ".join(f"h[{state}]" for state in states)
