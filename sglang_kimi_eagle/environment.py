"""What an installation would do: which SGLang, how the plugin gets into it, what it would add."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from sglang_kimi_eagle import __version__, upstream
from sglang_kimi_eagle.adapters.kimi_k25 import KIMI_CLASS
from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, rule
from sglang_kimi_eagle.settings import Settings

PLUGIN_GROUP = "sglang.srt.plugins"
HOOK_FILE = "sglang_kimi_eagle.pth"
BOOT_MODULE = "_sglang_kimi_eagle_boot"
CHOSEN = "SGLANG_PLUGINS"

NOT_INSTALLED = rule(
    "KE011",
    "plugin-not-installed",
    Severity.ERROR,
    "SGLang will not find the plugin: releases since 0.5.11 look for an entry point of the group "
    "`sglang.srt.plugins`, older ones need the start-up hook `sglang_kimi_eagle.pth` in "
    "site-packages. Both come with an ordinary installation, and not with a checkout on "
    "`PYTHONPATH`.",
    example="PYTHONPATH=sglang-kimi-eagle python -m sglang.launch_server ...",
)
NOT_LOADED = rule(
    "KE007",
    "plugin-not-loaded",
    Severity.ERROR,
    "The plugin could not even be imported. SGLang logs that and goes on without it, so a launch "
    "that asks for EAGLE3 with a Kimi-K2.5 target is stopped instead.",
    example="An environment in which wrapt was uninstalled.",
)
NOT_CHOSEN = rule(
    "KE012",
    "plugin-not-chosen",
    Severity.ERROR,
    "`SGLANG_PLUGINS` lists the plugins that SGLang loads, and this one is not in the list.",
    example="SGLANG_PLUGINS=other_plugin",
)


@dataclass(frozen=True)
class Environment:
    """What was found in this Python environment; nothing of SGLang was imported."""

    installation: upstream.Installation | None
    inspection: upstream.Inspection | None
    entry_point: bool
    hook: Path | None
    switched_off: bool
    findings: tuple[Diagnostic, ...]

    @property
    def loaded_by(self) -> str:
        """How SGLang gets the plugin; empty when it does not."""
        if self.installation is None or self.switched_off:
            return ""
        if self.installation.has_plugin_framework:
            return f"entry point {PLUGIN_GROUP}" if self.entry_point else ""
        return f"start-up hook {self.hook}" if self.hook else ""

    @property
    def changes(self) -> tuple[str, ...]:
        """What the plugin would change in this SGLang."""
        if self.inspection is None or self.inspection.release is None or not self.loaded_by:
            return ()
        release = self.inspection.release
        changes = [f"add {KIMI_CLASS}.{name}" for name in self.inspection.missing_methods]
        changes.append("capture the states that the drafter declares")
        if release.graphs_reset_ids:
            changes.append("keep the layer ids when CUDA graphs are captured")
        if release.partial_sums:
            changes.append("complete captured states under fused all-reduce")
        return tuple(changes)

    def as_dict(self) -> dict[str, Any]:
        """Return the report in the shape of the JSON output."""
        installation, inspection = self.installation, self.inspection
        return {
            "plugin": __version__,
            "python": sys.version.split()[0],
            "sglang": installation.version if installation else None,
            "package": str(installation.package) if installation else None,
            "known_release": bool(inspection and inspection.release),
            "missing_methods": list(inspection.missing_methods) if inspection else [],
            "entry_point": self.entry_point,
            "start_up_hook": str(self.hook) if self.hook else None,
            "switched_off": self.switched_off,
            "loaded_by": self.loaded_by or None,
            "changes": list(self.changes),
        }


def survey(settings: Settings) -> Environment:
    """Look at this Python environment."""
    installation = upstream.find_sglang()
    inspection = upstream.inspect(installation) if installation else None
    entry_point = any(
        found.value.partition(":")[0].startswith("sglang_kimi_eagle.")
        for found in metadata.entry_points(group=PLUGIN_GROUP)
    )
    hook = _hook()
    findings = [*settings.findings]
    if installation is None:
        findings.append(
            upstream.NO_SGLANG.found(
                "There is no SGLang in this environment.",
                where=sys.prefix,
                seen=f"no package sglang on the path of {sys.executable}",
                leads_to="Drafters can be checked here, but not served.",
                mend="Install sglang into this environment, or run the doctor in that of the "
                "server.",
            )
        )
    else:
        findings += inspection.findings if inspection else ()
        if settings.enabled:
            findings += _not_loaded(installation, entry_point, hook)
            findings += _not_importable()
    return Environment(
        installation, inspection, entry_point, hook, not settings.enabled, tuple(findings)
    )


def _hook() -> Path | None:
    """Return the start-up hook's boot module if it has run and will see SGLang's import."""
    boot = sys.modules.get(BOOT_MODULE)
    if boot is None or not boot.__file__:
        return None
    for finder in sys.meta_path:
        if getattr(finder, "__module__", "") == BOOT_MODULE:
            return Path(boot.__file__)
        if _finds_sglang(finder):
            return None
    return None


def _finds_sglang(finder: Any) -> bool:
    """Tell whether a finder answers for sglang, so that those after it are not asked."""
    try:
        return finder.find_spec("sglang", None) is not None
    except Exception:
        return False


def _not_importable() -> Iterator[Diagnostic]:
    """Import what a launch imports."""
    try:
        importlib.import_module("sglang_kimi_eagle.activation")
        importlib.import_module("sglang_kimi_eagle.launch")
    except Exception as error:
        yield NOT_LOADED.found(
            "The plugin itself fails to load.",
            where=f"Python {sys.version.split()[0]} ({sys.executable})",
            seen=repr(error),
            leads_to="Every EAGLE-3 launch with a Kimi-K2.5 target is refused.",
            mend="Reinstall sglang-kimi-eagle with its dependencies.",
        )


def _not_loaded(
    installation: upstream.Installation, entry_point: bool, hook: Path | None
) -> Iterator[Diagnostic]:
    by_framework = installation.has_plugin_framework
    if not (entry_point if by_framework else hook):
        wanted = f"entry point of {PLUGIN_GROUP}" if by_framework else HOOK_FILE
        yield NOT_INSTALLED.found(
            f"SGLang {installation.version} will not load the plugin.",
            where=sys.prefix,
            seen=f"no {wanted}",
            leads_to="Kimi-K2.5 is served as by unmodified SGLang.",
            mend="Install the package: pip install sglang-kimi-eagle.",
        )
    chosen = os.environ.get(CHOSEN, "")
    if by_framework and chosen and "kimi_eagle" not in [part.strip() for part in chosen.split(",")]:
        yield NOT_CHOSEN.found(
            f"{CHOSEN} leaves the plugin out.",
            where=f"environment, {CHOSEN}",
            seen=repr(chosen),
            leads_to="Kimi-K2.5 is served as by unmodified SGLang.",
            mend=f"Add kimi_eagle to {CHOSEN}, or unset it.",
        )
