"""Adapters: what the plugin has to know of a target model, one class or object for each.

An `Adapter` (`adapters.base`) says

- which launches concern it: the classes that ``architectures`` of a target's config names;
- how its language model is reached, and how a state h[k] is captured there: `language_model`,
  `put` (enforce the resolved states), `seen` (what is captured now);
- what SGLang makes of layer ids by itself: `read` (a `Reading`, from the sources) and `readings`;
- which of the three methods are missing (`missing`), and how they are added (`install`);
- where its number of layers stands in a config: `text_config`;
- on which releases it was proved, and checks of its own.

Everything else - judging drafters, resolving the wiring, refusing, the log line, the check before
serving - is the plugin's, and the same for every adapter.

What happens at a launch, in this order (`launch`, `activation`):

1. launching process and loading process: ``architectures[0]`` of the target's config finds the
   adapter; without one the launch is left alone;
2. `upstream.inspect` looks for the engine's and the adapter's `reliances` (KE001), asks `missing`
   and `read`, and makes a `Release` of them;
3. all checks, then the adapter's own `checks`; the wiring is resolved to states;
4. loading process only, before the model is built: ``module_of`` is imported and `install` called;
5. SGLang builds the model and calls its setter; the `StateCapture` given to `install` calls `put`;
6. before anything is served `seen` is compared with the resolved states (KE008).

The built-in adapters are registered like those of other packages: `adapters.builtin` implements
the hook ``kimi_eagle_adapters`` and is registered first.
"""

from sglang_kimi_eagle.adapters.base import Adapter, CannotServe, Reading
from sglang_kimi_eagle.adapters.deepseek import read_deepseek
from sglang_kimi_eagle.adapters.kimi_k25 import KIMI_K25

__all__ = ["KIMI_K25", "Adapter", "CannotServe", "Reading", "read_deepseek"]
