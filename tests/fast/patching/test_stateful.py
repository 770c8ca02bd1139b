"""Any sequence of imports, reloads, deletions, installs and reverts of two sets."""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from types import FunctionType

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.strategies import sampled_from

from vllm_compat.patching import Add, PatchSet, Wrap

T, CONSUMER = "any_order.target", "any_order.consumer"
TARGET = """
def f(x):
    return ("f", x)

class Base:
    def inherited(self, x):
        return ("inherited", x)

class C(Base):
    def method(self, x):
        return ("method", x)
"""


def mark(wrapped, instance, args, kwargs):
    return ("wrapped", wrapped(*args, **kwargs))


class AnyOrder(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        package = Path(self.folder.name) / "any_order"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "target.py").write_text(TARGET)
        (package / "consumer.py").write_text("from any_order.target import C, f\n")
        sys.path.insert(0, self.folder.name)
        importlib.invalidate_caches()
        self.meta_path = [*sys.meta_path]
        self.sets = {
            "functions": PatchSet(
                [
                    Wrap(T, "f", mark, "a"),
                    Wrap(CONSUMER, "f", mark, "a"),
                    Add(T, "extra", lambda module: 1, "a"),
                ]
            ),
            "methods": PatchSet(
                [
                    Wrap(T, "C.method", mark, "b"),
                    Wrap(T, "C.inherited", mark, "b"),
                    Wrap(CONSUMER, "C.method", mark, "b"),
                ]
            ),
        }
        self.installed = {"functions": False, "methods": False}
        self.seen = []  # every module object there ever was, in use somewhere maybe

    @rule(name=sampled_from([T, CONSUMER]))
    def load(self, name):
        importlib.import_module(name)
        for each in (T, CONSUMER):
            if each in sys.modules and not any(m is sys.modules[each] for m in self.seen):
                self.seen.append(sys.modules[each])

    @rule(name=sampled_from([T, CONSUMER]))
    def reload(self, name):
        if name in sys.modules:
            importlib.reload(sys.modules[name])

    # What lost its name while a set was off is nobody's to patch, so forget when both are on.
    @precondition(lambda self: all(self.installed.values()))
    @rule(name=sampled_from([T, CONSUMER]))
    def forget(self, name):
        sys.modules.pop(name, None)

    @rule(which=sampled_from(["functions", "methods"]))
    def install(self, which):
        self.sets[which].install()
        self.installed[which] = True

    @rule(which=sampled_from(["functions", "methods"]))
    def revert(self, which):
        self.sets[which].revert()
        self.installed[which] = False

    def expect(self, which, value):
        return ("wrapped", value) if self.installed[which] else value

    @invariant()
    def present_modules_behave(self):
        for name in (T, CONSUMER):
            module = sys.modules.get(name)
            if module is not None:
                assert module.f(1) == self.expect("functions", ("f", 1))
        if T in sys.modules:
            target = sys.modules[T]
            assert target.C().method(1) == self.expect("methods", ("method", 1))
            assert target.C().inherited(1) == self.expect("methods", ("inherited", 1))
            assert target.Base().inherited(1) == ("inherited", 1)
            assert hasattr(target, "extra") is self.installed["functions"]

    @invariant()
    def nothing_of_ours_is_left_where_nothing_is_installed(self):
        if not any(self.installed.values()):
            assert sys.meta_path == self.meta_path
            for module in self.seen:
                assert type(module.f) is FunctionType
                assert type(vars(module.C)["method"]) is FunctionType
                assert "inherited" not in vars(module.C)
                assert "extra" not in vars(module)

    def teardown(self):
        try:
            for which in self.sets:
                self.revert(which)
            self.nothing_of_ours_is_left_where_nothing_is_installed()
        finally:
            sys.path.remove(self.folder.name)
            for name in [n for n in sys.modules if n.partition(".")[0] == "any_order"]:
                del sys.modules[name]
            self.folder.cleanup()


AnyOrder.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestAnyOrder = AnyOrder.TestCase
