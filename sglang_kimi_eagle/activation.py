"""The one place that decides what happens in this process.

SGLang's plugin framework (0.5.11 and later) or the start-up hook (0.5.9, 0.5.10.x) calls in here
at the start of every process.  Nothing of SGLang is imported: wrappers are put in place as its
modules are imported, by the process itself, in whatever order.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

import wrapt

from sglang_kimi_eagle import __version__, exit_status, upstream
from sglang_kimi_eagle.adapters import KIMI_K25, Adapter, CannotServe
from sglang_kimi_eagle.capture import StateCapture
from sglang_kimi_eagle.diagnostics import (
    Diagnostic,
    LaunchRefused,
    Severity,
    errors,
    rule,
)
from sglang_kimi_eagle.settings import SWITCH, TRACE, Settings, read_settings, switched_off
from sglang_kimi_eagle.states import show

if TYPE_CHECKING:
    from sglang_kimi_eagle.launch import Verdict
    from sglang_kimi_eagle.server_arguments import ServerArguments
    from sglang_kimi_eagle.target import Target
    from sglang_kimi_eagle.tracing.recorder import Recorder

log = logging.getLogger("sglang_kimi_eagle")

_REPORTED = "_SGLANG_KIMI_EAGLE_REPORTED"

PATCH_FAILED = rule(
    "KE006",
    "patch-failed",
    Severity.ERROR,
    "A part of the plugin could not be put in place in this process. A server without it would "
    "fail after loading all weights, or serve a drafter on the wrong states.",
    example="An SGLang in which ModelRunner cannot be wrapped.",
)


CAPTURE_LOST = rule(
    "KE008",
    "capture-lost",
    Severity.ERROR,
    "The target does not capture the states that the plugin put in place: something else, such as "
    "another plugin that patches the same classes, has changed them. The drafter would be served "
    "on states that it was not trained on.",
    example="A second plugin that replaces set_eagle3_layers_to_capture of the Kimi wrapper.",
)


CLASS_REPLACED = rule(
    "KE009",
    "target-class-replaced",
    Severity.ERROR,
    "Another package has replaced the target's class by one that cannot serve an EAGLE-3 drafter. "
    "The plugin adds methods to SGLang's own classes only: what they would have to reach "
    "in another one is not known.",
    example="SGLANG_EXTERNAL_MODEL_PACKAGE with a KimiK25ForConditionalGeneration of its own.",
)


@dataclass
class Process:
    """What the plugin did in this process."""

    found_by: str = ""
    """How the plugin was loaded; empty while it was not."""
    added: tuple[str, ...] = ()
    capture: StateCapture = field(default_factory=StateCapture)
    failures: list[Diagnostic] = field(default_factory=list)
    runner: Any = None
    """The target's ``ModelRunner``, in a process that loads the model."""
    recorder: Recorder | None = None
    """Takes the trace that ``SGLANG_KIMI_EAGLE_TRACE`` asks for."""


process = Process()


def activate(found_by: str) -> None:
    """Activate the plugin in this process, once, whoever calls first.

    Args:
        found_by: how the plugin was loaded, for `doctor` and the log.
    """
    if process.found_by or switched_off():
        return
    installation = upstream.find_sglang()
    by_framework = installation is not None and installation.has_plugin_framework
    if found_by == "start-up hook" and by_framework:
        # That release loads plugins itself, and lets SGLANG_PLUGINS choose among them.
        return
    process.found_by = found_by
    for module, callback in (
        (upstream.SERVER_ARGS_MODULE, _wrap_server_args),
        (upstream.RUNNER_MODULE, _wrap_model_runner),
        (upstream.SCHEDULER_MODULE, _wrap_scheduler),
    ):
        wrapt.register_post_import_hook(_guarded(callback), module)


def _guarded(callback: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    """Keep a failing callback from breaking the import.

    SGLang's model registry swallows import errors and drops the architecture; the failure is kept
    and refused where an exception stops the server.
    """

    def on_import(module: ModuleType) -> None:
        try:
            callback(module)
        except Exception as error:
            what = f"{callback.__name__.strip('_').replace('_', ' ')} failed: {error}"
            process.failures.append(_failed(what, module.__name__, repr(error)))

    return on_import


def _wrap_server_args(module: ModuleType) -> None:
    # Up to 0.5.18 construction resolves the arguments and opens the target's files; later
    # releases do it in a step of its own.
    name = "resolve_once" if hasattr(module.ServerArgs, "resolve_once") else "__post_init__"
    wrapt.wrap_function_wrapper(module.ServerArgs, name, _before_resolution)


def _wrap_model_runner(module: ModuleType) -> None:
    wrapt.wrap_function_wrapper(module.ModelRunner, "__init__", _before_model)


def _wrap_scheduler(module: ModuleType) -> None:
    wrapt.wrap_function_wrapper(module.Scheduler, "__init__", _after_scheduler)


def _before_resolution(
    wrapped: Callable[..., Any], server_args: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Judge the launch in the launching process, before SGLang opens the target.

    And once more when SGLang has chosen what the user left open, such as the attention backend:
    before any process that loads weights is started.
    """
    if getattr(server_args, "_resolution_finished", False):
        return wrapped(*args, **kwargs)
    _judge(server_args, loading=False)
    result = wrapped(*args, **kwargs)
    _judge(server_args, loading=False)
    return result


def _before_model(
    wrapped: Callable[..., Any], runner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Judge the launch once more in the process that loads the model, before it does."""
    bound = inspect.signature(wrapped).bind_partial(*args, **kwargs).arguments
    if not bound.get("is_draft_worker", False):
        # What SGLang has read itself, for a target that is on no file system.
        read = bound["model_config"].hf_config.to_dict()
        _judge(bound["server_args"], loading=True, target_config=read)
        process.runner = runner
    elif process.recorder is not None:
        process.recorder.draft = runner
    try:
        return wrapped(*args, **kwargs)
    except CannotServe as problem:
        report(list(problem.findings))
        raise LaunchRefused(problem.findings) from problem


def _after_scheduler(
    wrapped: Callable[..., Any], scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """See, once the model is set up and before it serves, that it captures what it must.

    Raises:
        LaunchRefused: something has changed the states since they were put in place.
    """
    result = wrapped(*args, **kwargs)
    runner, process.runner = process.runner, None
    seen = _differs(runner.model) if runner is not None else None
    if seen is not None:
        assert process.capture.states is not None
        lost = CAPTURE_LOST.found(
            f"The target must capture {show(process.capture.states)}, and does not.",
            where=f"{type(runner.model).__module__}.{type(runner.model).__name__}",
            seen=seen,
            leads_to="The drafter would draft from states that it was not trained on.",
            mend="Remove the other plugin or patch that sets the layers to capture.",
        )
        report([lost], loaded=True)
        raise LaunchRefused([lost])
    if runner is not None and process.recorder is not None:
        findings = list(process.recorder.install(runner))
        report(findings, loaded=True)
        if errors(findings):
            raise LaunchRefused(findings)
    return result


def _differs(model: Any) -> str | None:
    try:
        return process.capture.differs(model)
    except Exception as error:
        # Of an adapter that was not made for this model.
        return repr(error)


def _judge(server_args: Any, *, loading: bool, target_config: dict[str, Any] | None = None) -> None:
    """Judge a launch; refuse it, or set up this process for it.

    Raises:
        LaunchRefused: the launch must not go on.
    """
    from sglang_kimi_eagle import launch
    from sglang_kimi_eagle.checks import apply_settings
    from sglang_kimi_eagle.server_arguments import ServerArguments

    arguments = ServerArguments.from_sglang(server_args)
    if not launch.concerns(arguments):
        if os.environ.get(TRACE):
            _nothing_traced("no EAGLE-3 launch", read_settings())
        return
    settings = read_settings()
    installation = upstream.find_sglang()
    assert installation is not None
    target = launch.find_target(arguments, target_config)
    adapter = launch.adapter_for(target, settings, installation)
    if target is None:
        return
    if adapter is None:
        _warn_of_missing_methods(arguments, target, settings, installation)
        if settings.trace is not None:
            _nothing_traced(f"a launch of {target.architecture}", settings)
        return
    verdict = launch.judge(arguments, target, settings, installation, adapter)
    findings = list(verdict.findings)
    if loading:
        findings += apply_settings([*process.failures, *_install(adapter, target)], settings)
    if settings.trace is not None and adapter is KIMI_K25:
        findings += _check_trace(settings, verdict, target, server_args, loading=loading)
    report(findings)
    if errors(findings):
        raise LaunchRefused(findings)
    if not loading:
        exit_status.pass_on()
        return
    if verdict.release is None:
        raise RuntimeError("a launch on an SGLang that is not understood was not refused")
    if verdict.wiring is not None:
        process.capture.states = verdict.wiring.states
        process.capture.mend_partial_sums = verdict.release.partial_sums
    if settings.trace is not None and adapter is KIMI_K25:
        _prepare_trace(settings, verdict, target, arguments)
    elif settings.trace is not None:
        _nothing_traced(f"a launch of {target.architecture}", settings)
    log.info("%s", launch.log_line(verdict, process.added, __version__, adapter))


def _check_trace(
    settings: Settings, verdict: Verdict, target: Target, server_args: Any, *, loading: bool
) -> list[Diagnostic]:
    """Judge the trace asked for, and make prefill run what can be recorded."""
    from sglang_kimi_eagle.tracing.launching import check_request, prefill_eagerly

    assert settings.trace is not None
    if verdict.wiring is None or not verdict.wiring.states:
        return []
    findings = list(check_request(settings.trace, target.num_layers))
    # Once resolved, the arguments no longer tell what the user asked for.
    return findings if loading else [*findings, *prefill_eagerly(server_args)]


def _prepare_trace(
    settings: Settings, verdict: Verdict, target: Target, arguments: ServerArguments
) -> None:
    """Set up the recorder, which is installed when the model is set up."""
    from sglang_kimi_eagle.tracing.recorder import Launch, Recorder, place

    wiring, release = verdict.wiring, verdict.release
    assert settings.trace is not None and release is not None
    if wiring is None or not wiring.states:
        _nothing_traced("a drafter that takes no states", settings)
        return
    process.recorder = Recorder(
        settings.trace,
        Launch(
            plugin=__version__,
            sglang=release.version,
            target=place(arguments.model_path),
            drafter=place(arguments.draft_model_path or ""),
            num_layers=target.num_layers,
            wired=wiring.states,
            reason=wiring.label,
        ),
        captures_embedding=release.captures_embedding,
        partial_sums=release.partial_sums,
    )
    process.capture.traced = process.recorder.completed


def _nothing_traced(seen: str, settings: Settings) -> None:
    from sglang_kimi_eagle.checks import apply_settings
    from sglang_kimi_eagle.tracing.launching import nothing_traced

    findings = apply_settings([nothing_traced(seen)], settings)
    report(findings)
    if errors(findings):
        raise LaunchRefused(findings)


def _warn_of_missing_methods(
    arguments: ServerArguments,
    target: Target,
    settings: Settings,
    installation: upstream.Installation,
) -> None:
    """Say that a target which is none of the plugin's could become one, and would fail without."""
    from sglang_kimi_eagle import launch
    from sglang_kimi_eagle.adapters import wrappers
    from sglang_kimi_eagle.checks import apply_settings

    if arguments.algorithm == launch.EAGLE3:
        findings = apply_settings(wrappers.hint(target.architecture, installation), settings)
        report(findings)
        if errors(findings):
            raise LaunchRefused(findings)


def _install(adapter: Adapter, target: Target) -> list[Diagnostic]:
    """Put in place what the target's classes need, before the model is built."""
    name = target.architecture
    where = adapter.name
    try:
        where = adapter.module_of(name)
        process.added = tuple(adapter.install(name, process.capture)) or process.added
        process.capture.point = adapter
        registry = importlib.import_module(upstream.REGISTRY_MODULE).ModelRegistry
        cls, _ = registry.resolve_model_cls([name])
    except Exception as error:
        return [_failed(str(error), where, repr(error))]
    missing = [method for method in upstream.METHODS[:2] if not hasattr(cls, method)]
    if not missing:
        return []
    what = f"{name} has no {', '.join(missing)}"
    if cls.__module__ == where:
        return [_failed(what, where, "the class as adapted")]
    return [
        CLASS_REPLACED.found(
            f"{what}.",
            where=cls.__module__,
            seen=f"SGLang's own class is in {where}",
            leads_to="SGLang fails after it has loaded all weights.",
            mend="Derive the class from SGLang's, give it the methods, or unset "
            "SGLANG_EXTERNAL_MODEL_PACKAGE.",
        )
    ]


def _failed(what: str, where: str, seen: str) -> Diagnostic:
    return PATCH_FAILED.found(
        f"{what}.",
        where=where,
        seen=seen,
        leads_to="SGLang would fail after it has loaded all weights, or serve a drafter on other "
        "states.",
        mend="Use an SGLang release that the plugin was tested on, or switch the plugin off with "
        f"{SWITCH}=0.",
    )


def report(findings: list[Diagnostic], *, loaded: bool = False) -> None:
    """Print errors on stderr and log the rest.

    A warning is logged once per launch: what the launching process has logged, the processes that
    it starts know of by an environment variable.
    """
    reported = set(os.environ.get(_REPORTED, "").split())
    for finding in findings:
        text = finding.render()
        mark = f"{finding.code}-{zlib.crc32(text.encode()):08x}"
        if finding.severity is Severity.ERROR:
            sys.stderr.write(f"sglang-kimi-eagle: {text}\n")
        elif mark in reported:
            continue
        elif finding.severity is Severity.WARNING:
            log.warning("sglang-kimi-eagle: %s", text)
        else:
            log.info("sglang-kimi-eagle: %s", text)
        reported.add(mark)
    os.environ[_REPORTED] = " ".join(sorted(reported))
    if errors(findings):
        when = "before anything was served" if loaded else "no weight was read"
        sys.stderr.write(f"sglang-kimi-eagle: launch refused; {when}.\n")
        sys.stderr.flush()
