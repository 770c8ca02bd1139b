"""Imports that race with installs and reverts."""

from __future__ import annotations

import importlib
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from vllm_compat.patching import Add, PatchSet, Wrap

T, CONSUMER, MOVED = "made_up.target", "made_up.consumer", "made_up.moved"
ROUNDS = 100


@pytest.fixture
def nervous_threads():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def run_at_once(*jobs: Callable[[], object]) -> None:
    start, errors = threading.Barrier(len(jobs)), []

    def run(job: Callable[[], object]) -> None:
        start.wait()
        try:
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert not any(thread.is_alive() for thread in threads), "deadlock"
    assert errors == []


def test_imports_race_with_installs_and_reverts(packages, mark, nervous_threads):
    packages.write(MOVED, "def extra(x):\n    return ('extra', x)\n")
    patches = PatchSet(
        [
            # Imports another target, as the factory for a symbol that moved does.
            Add(T, "extra", lambda module: importlib.import_module(MOVED).extra, "a"),
            Wrap(T, "f", mark, "a"),
            Wrap(T, "C.method", mark, "a"),
            Wrap(CONSUMER, "f", mark, "a"),
            Wrap(CONSUMER, "C.method", mark, "a"),
            Wrap(MOVED, "extra", mark, "a"),
        ]
    )
    dice = random.Random(7)
    for _ in range(ROUNDS):
        last = dice.choice((patches.install, patches.revert))
        toggles = dice.choices((patches.install, patches.revert), k=dice.randrange(4))

        def toggle(steps=(*toggles, last)):
            for step in steps:
                step()

        run_at_once(
            lambda: packages.load(CONSUMER),
            toggle,
            lambda: packages.load(MOVED),
            lambda: packages.load(T),
        )
        target, consumer, moved = map(packages.load, (T, CONSUMER, MOVED))
        c = target.C()
        if last == patches.install:
            assert target.f(1) == consumer.f(1) == ("wrapped", None, ("f", 1))
            assert moved.extra(1) == ("wrapped", None, ("extra", 1))
            assert c.method(1) == ("wrapped", c, ("method", 1))
            assert "extra" in vars(target)
        patches.revert()
        assert consumer.f is target.f
        assert target.f(1) == ("f", 1)
        assert moved.extra(1) == ("extra", 1)
        assert c.method(1) == ("method", 1)
        assert "extra" not in vars(target)
        for name in (T, CONSUMER, MOVED):
            packages.forget(name)


def test_several_threads_install_one_set(packages, mark, nervous_threads):
    patches = PatchSet([Wrap(T, "f", mark, "a"), Wrap(CONSUMER, "f", mark, "a")])
    consumer, target = packages.load(CONSUMER), packages.load(T)
    f = target.f
    for _ in range(ROUNDS // 3):

        def install():
            patches.install()
            # Whoever returns finds it patched, also if another thread did the work.
            assert target.f(1) == consumer.f(1) == ("wrapped", None, ("f", 1))

        run_at_once(install, install, install)
        run_at_once(patches.revert, patches.revert)
        assert target.f is consumer.f is f


def test_an_import_that_had_found_its_module_before_the_install_is_patched(packages, mark):
    found, proceed = threading.Event(), threading.Event()

    class Slow:
        """Is asked last before the module is found, outside of any watch."""

        def find_spec(self, fullname, *_):
            if fullname == T:
                found.set()
                assert proceed.wait(20)

    patches = PatchSet([Wrap(T, "f", mark, "a")])
    packages.load("made_up")
    slow = Slow()
    sys.meta_path.insert(0, slow)
    importing = threading.Thread(target=packages.load, args=(T,), daemon=True)
    installing = threading.Thread(target=patches.install, daemon=True)
    importing.start()
    assert found.wait(20)
    # Ours goes to the front, where this import has been already.
    installing.start()
    while len(sys.meta_path) < 2 or sys.meta_path[1] is not slow:
        pass
    installing.join(0.05)
    assert installing.is_alive()
    proceed.set()
    importing.join(20)
    installing.join(20)
    sys.meta_path.remove(slow)
    assert sys.modules[T].f(1) == ("wrapped", None, ("f", 1))
    patches.revert()


def test_a_factory_may_import_while_an_import_elsewhere_waits_to_be_patched(packages, mark):
    """The lock order: a factory that imports and an import to be patched must not embrace."""
    packages.write(MOVED, "import made_up.gate\nmade_up.gate.pass_through()\nextra = len\n")
    packages.write("made_up.gate", "")
    in_import, in_factory = threading.Event(), threading.Event()
    gate = packages.load("made_up.gate")

    def pass_through():
        in_import.set()
        assert in_factory.wait(20)

    gate.pass_through = pass_through

    def factory(module):
        in_factory.set()
        return importlib.import_module(MOVED).extra

    target = packages.load(T)
    # Another set watches the module in the making, so its import ends in our code, too.
    watching = PatchSet([Wrap(MOVED, "extra", mark, "b")])
    watching.install()
    patches = PatchSet([Add(T, "extra", factory, "a")])

    def install():
        assert in_import.wait(20)
        patches.install()

    run_at_once(lambda: packages.load(MOVED), install)
    assert target.extra([1]) == ("wrapped", None, 1)
    patches.revert()
    watching.revert()


def test_a_reload_that_overtakes_an_install_is_patched_at_its_end(packages, mark):
    packages.write(T, "import made_up.gate\nmade_up.gate.pass_through()\ndef f(x): return x\n")
    packages.write("made_up.gate", "def pass_through(): pass\n")
    target = packages.load(T)
    planned, executing, installed = threading.Event(), threading.Event(), threading.Event()

    def verify(module, patch):
        if not planned.is_set():
            planned.set()
            assert executing.wait(20)

    def pass_through():
        executing.set()
        assert installed.wait(20)

    packages.load("made_up.gate").pass_through = pass_through
    patches = PatchSet([Wrap(T, "f", mark, "a")], verify=verify)

    def install():
        patches.install()
        installed.set()

    def reload():
        assert planned.wait(20)
        importlib.reload(target)

    run_at_once(install, reload)
    assert target.f(1) == ("wrapped", None, 1)
    patches.revert()
    assert target.f(1) == 1


FORKING = """
import os, threading, time
from vllm_compat.patching.imports import LOCK
held = threading.Event()
def hold():
    with LOCK:
        held.set()
        time.sleep(0.2)
threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if child == 0:
    os._exit(0 if LOCK.acquire(timeout=5) else 1)
print(os.waitpid(child, 0)[1])
"""


def test_a_forked_child_does_not_inherit_a_lock_that_another_thread_held():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING],
        env={"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.returncode) == ("0\n", 0), done.stderr
