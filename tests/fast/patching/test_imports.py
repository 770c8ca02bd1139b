"""Modules that are imported, imported again, reloaded, or fail, while a set is installed."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import sys
from importlib.machinery import SourceFileLoader

import pytest

from vllm_compat.errors import PatchError
from vllm_compat.patching import Add, PatchSet, Replace, Wrap

T, CONSUMER = "made_up.target", "made_up.consumer"


def test_a_module_is_patched_before_its_importer_gets_it(packages, mark):
    patches = PatchSet([Wrap(T, "f", mark, "a")])
    patches.install()
    consumer = packages.load(CONSUMER)
    assert consumer.use(1) == ("wrapped", None, ("f", 1))
    patches.revert()


def test_a_copy_that_a_named_consumer_took_is_patched_once_and_given_the_original(packages, mark):
    patches = PatchSet([Wrap(T, "f", mark, "a"), Wrap(CONSUMER, "f", mark, "a")])
    patches.install()
    consumer, target = packages.load(CONSUMER), packages.load(T)
    assert consumer.f(1) == target.f(1) == ("wrapped", None, ("f", 1))
    assert patches.foreign == ()
    patches.revert()
    assert consumer.f is target.f
    assert consumer.f(1) == ("f", 1)


def test_the_module_keeps_its_own_loader(packages, mark):
    packages.write(T, "loaders = (__loader__, __spec__.loader)\ndef f(x): return x\n")
    patches = PatchSet([Wrap(T, "f", mark, "a")])
    patches.install()
    spec = importlib.util.find_spec(T)
    assert spec.loader.get_source(T).startswith("loaders = ")
    assert spec.loader.is_package(T) is False
    assert not hasattr(spec.loader, "no_such_thing")
    target = packages.load(T)
    assert {type(loader) for loader in target.loaders} == {SourceFileLoader}
    assert type(target.__loader__) is type(target.__spec__.loader) is SourceFileLoader
    assert target.__loader__ is target.__spec__.loader
    assert inspect.getsource(target).startswith("loaders = ")
    patches.revert()


def test_a_package_and_its_submodule(packages, mark):
    packages.write("made_up.pack.sub", "def f(x): return ('sub', x)\n")
    (packages.root / "made_up" / "pack" / "__init__.py").write_text(
        "from made_up.pack.sub import f as g\ndef f(x): return ('pack', x)\n"
    )
    (packages.root / "made_up" / "pack" / "data.txt").write_text("data")
    patches = PatchSet(
        [Wrap("made_up.pack", "f", mark, "a"), Wrap("made_up.pack.sub", "f", mark, "a")]
    )
    patches.install()
    sub, pack = packages.load("made_up.pack.sub"), packages.load("made_up.pack")
    assert pack.f(1) == ("wrapped", None, ("pack", 1))
    assert pack.g(1) == sub.f(1) == ("wrapped", None, ("sub", 1))
    assert pkgutil.get_data("made_up.pack", "data.txt") == b"data"
    assert pack.sub is sub
    patches.revert()


def test_an_import_of_something_absent_fails_as_ever(packages, mark):
    patches = PatchSet([Wrap("made_up.absent", "f", mark, "a")])
    patches.install()
    assert importlib.util.find_spec("made_up.absent") is None
    with pytest.raises(ModuleNotFoundError) as caught:
        packages.load("made_up.absent")
    assert caught.value.name == "made_up.absent"
    patches.revert()


def test_an_import_that_fails_is_patched_when_it_works(packages, mark):
    packages.write(T, "raise OSError('not now')\n")
    patches = PatchSet([Wrap(T, "f", mark, "a")])
    patches.install()
    with pytest.raises(OSError, match="not now"):
        packages.load(T)
    assert T not in sys.modules
    packages.write(T, "def f(x): return x  # now it works\n")
    assert packages.load(T).f(1) == ("wrapped", None, 1)
    patches.revert()


def test_a_deferred_patch_that_fails_turns_the_whole_set_off(packages, mark):
    packages.write("made_up.other", "def g(x): return x\n")
    other = packages.load("made_up.other")
    g = other.g
    patches = PatchSet(
        [
            Wrap("made_up.other", "g", mark, "a"),
            Wrap(T, "f", mark, "a"),
            Wrap(T, "C.absent", mark, "b"),
        ]
    )
    patches.install()
    assert other.g is not g
    with pytest.raises(PatchError, match=r"cannot patch b: made_up\.target\.C\.absent"):
        packages.load(CONSUMER)
    assert T not in sys.modules
    assert CONSUMER not in sys.modules
    assert other.g is g
    assert not patches.installed
    assert packages.load(T).f(1) == ("f", 1)


def test_a_deferred_verify_that_fails_is_the_cause_of_the_import_error(packages, mark):
    error = LookupError("unfit")

    def verify(module, patch):
        raise error

    patches = PatchSet([Wrap(T, "f", mark, "a")], verify=verify)
    patches.install()
    with pytest.raises(PatchError) as caught:
        packages.load(T)
    assert caught.value.__cause__ is error
    assert caught.value.found == "LookupError: unfit"
    assert T not in sys.modules


def test_a_failure_that_cannot_be_undone_says_both(packages, mark):
    packages.write("made_up.other", "def g(x): return x\n")
    other = packages.load("made_up.other")
    patches = PatchSet([Wrap("made_up.other", "g", mark, "a"), Wrap(T, "absent", mark, "b")])
    patches.install()
    ours, other.g = other.g, len
    with pytest.raises(PatchError) as caught:
        packages.load(T)
    assert "cannot patch b: made_up.target.absent" in str(caught.value)
    assert "cannot take off a: made_up.other.g" in str(caught.value)
    assert patches.installed
    other.g = ours
    patches.revert()


def test_one_set_that_fails_does_not_stop_another(packages, mark):
    bad = PatchSet([Wrap(T, "absent", mark, "bad")])
    good = PatchSet([Wrap(T, "f", mark, "good")])
    bad.install()
    good.install()
    with pytest.raises(PatchError, match=r"bad: made_up\.target\.absent"):
        packages.load(T)
    assert (bad.installed, good.installed) == (False, True)
    assert packages.load(T).f(1) == ("wrapped", None, ("f", 1))
    good.revert()


def test_a_module_imported_again_is_patched_again(packages, mark):
    patches = PatchSet([Wrap(T, "f", mark, "a"), Wrap(T, "C.inherited", mark, "a")])
    first = packages.load(T)
    patches.install()
    packages.forget(T)
    second = packages.load(T)
    assert second is not first
    for module in (first, second):
        assert module.f(1) == ("wrapped", None, ("f", 1))
    patches.revert()
    for module in (first, second):
        assert module.f(1) == ("f", 1)
        assert "inherited" not in vars(module.C)


def test_a_reload_is_patched_again(packages, mark):
    target = packages.load(T)
    patches = PatchSet(
        [
            Wrap(T, "f", mark, "a"),
            Wrap(T, "C.method", mark, "a"),
            Add(T, "extra", lambda module: module.f, "a"),
        ]
    )
    patches.install()
    old_class, keys = target.C, set(vars(target)) - {"extra"}
    packages.write(T, (packages.root / "made_up/target.py").read_text() + "\nf2 = f\n")
    assert importlib.reload(target) is target
    assert target.f(1) == ("wrapped", None, ("f", 1))
    assert target.f2(1) == target.extra(1) == ("f", 1)
    assert target.C is not old_class
    for cls in (old_class, target.C):
        c = cls()
        assert c.method(1) == ("wrapped", c, ("method", 1))
    patches.revert()
    assert target.f is target.f2
    assert set(vars(target)) == keys | {"f2"}
    assert old_class().method(1) == target.C().method(1) == ("method", 1)


def test_a_reload_that_brings_our_very_value_is_no_copy_of_ours(packages):
    packages.write(T, "LIMIT = 3\n")
    target = packages.load(T)
    patches = PatchSet([Replace(T, "LIMIT", lambda limit: limit * 2, "a")])
    patches.install()
    packages.write(T, "LIMIT = 6  # now\n")
    importlib.reload(target)
    assert target.LIMIT == 12
    patches.revert()
    assert target.LIMIT == 6


def test_a_reload_that_fails_keeps_the_patches(packages, mark):
    target = packages.load(T)
    patches = PatchSet([Wrap(T, "f", mark, "a"), Wrap(T, "C.method", mark, "a")])
    patches.install()
    packages.write(T, "def f(x): return ('new f', x)\nraise OSError('half way')\n")
    with pytest.raises(OSError, match="half way"):
        importlib.reload(target)
    c = target.C()
    assert target.f(1) == ("wrapped", None, ("new f", 1))
    assert c.method(1) == ("wrapped", c, ("method", 1))
    patches.revert()
    assert target.f(1) == ("new f", 1)
    assert c.method(1) == ("method", 1)


def test_a_reload_under_a_foreign_patch_is_refused(packages, mark):
    target = packages.load(T)
    patches = PatchSet([Wrap(T, "f", mark, "a")])
    patches.install()
    ours, target.f = target.f, len
    with pytest.raises(PatchError, match=r"cannot take off a: made_up\.target\.f"):
        importlib.reload(target)
    assert target.f is len
    target.f = ours
    patches.revert()


def test_a_reload_that_no_longer_fits_turns_the_set_off(packages, mark):
    target = packages.load(T)
    method = vars(target.C)["method"]
    patches = PatchSet([Wrap(T, "C.method", mark, "a"), Wrap(T, "f", mark, "a")])
    patches.install()
    packages.write(T, "class C: pass\n")
    old = target.C
    with pytest.raises(PatchError, match=r"a: made_up\.target\.C\.method"):
        importlib.reload(target)
    assert vars(old)["method"] is method
    assert target.f(1) == ("f", 1)
    assert not patches.installed


def test_a_module_that_puts_another_in_its_place(packages, mark):
    packages.write(
        T,
        "import sys, types\n"
        "new = types.ModuleType(__name__)\n"
        "new.f = lambda x: ('new', x)\n"
        "sys.modules[__name__] = new\n",
    )
    patches = PatchSet([Wrap(T, "f", mark, "a")])
    patches.install()
    assert packages.load(T).f(1) == ("wrapped", None, ("new", 1))
    patches.revert()
    assert packages.load(T).f(1) == ("new", 1)


def test_a_private_copy_of_a_module_is_patched_and_the_published_one_left_alone(packages, mark):
    patches = PatchSet([Wrap(T, "f", mark, "a")])
    patches.install()
    spec = importlib.util.find_spec(T)
    published = packages.load(T)
    ours = published.f
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    assert copy is not published
    assert copy.f(1) == ("wrapped", None, ("f", 1))
    assert published.f is ours
    patches.revert()
    assert copy.f(1) == published.f(1) == ("f", 1)


def test_install_during_the_import_of_a_target_is_refused(packages, mark):
    packages.write(T, "import made_up.hook\nmade_up.hook.run()\ndef f(x): return x\n")
    packages.write("made_up.hook", "run = None\n")
    patches = PatchSet([Wrap(T, "f", mark, "a")])
    packages.load("made_up.hook").run = patches.install
    with pytest.raises(PatchError, match=r"the module 'made_up\.target'") as caught:
        packages.load(T)
    assert caught.value.found == "an import of it began before and is waiting for this very call"
    assert not patches.installed


def test_install_during_an_import_that_is_watched_waits_for_its_end(packages, mark):
    packages.write(
        T, "import made_up.hook\nmade_up.hook.run()\ndef f(x): return x\ndef g(x): return x\n"
    )
    packages.write("made_up.hook", "run = None\n")
    other = PatchSet([Wrap(T, "g", mark, "other")])
    patches = PatchSet([Wrap(T, "f", mark, "a")])
    packages.load("made_up.hook").run = patches.install
    other.install()
    assert packages.load(T).f(1) == ("wrapped", None, 1)
    other.revert()
    patches.revert()


class _Finder:
    """Acts when asked for one name, and finds nothing."""

    def __init__(self, name, act):
        self.name, self.act = name, act

    def find_spec(self, fullname, path=None, target=None):
        return self.act(fullname, path, target) if fullname == self.name else None


def test_a_revert_while_an_import_walks_the_finders_loses_no_finder(packages, mark):
    name = "made_up.plain"
    packages.write(name, "x = 1\n")
    patches = PatchSet([Wrap(T, "f", mark, "a")])
    found = importlib.util.find_spec(name)
    with pytest.MonkeyPatch.context() as restoring:
        # The first to be asked after ours takes ours away; only the next finds the module.
        reverting = _Finder(name, lambda *args: patches.revert())
        finding = _Finder(name, lambda *args: found)
        restoring.setattr(sys, "meta_path", [reverting, finding])
        patches.install()
        assert packages.load(name).x == 1
        assert sys.meta_path == [reverting, finding]


def test_a_finder_that_hands_out_one_spec_gets_one_loader_put_around(packages, mark):
    packages.load("made_up")
    spec = importlib.util.find_spec(T)
    patches = PatchSet([Wrap(T, "f", mark, "a")])
    patches.install()
    theirs = _Finder(T, lambda *args: spec)
    sys.meta_path.insert(1, theirs)
    loader = importlib.util.find_spec(T).loader
    assert importlib.util.find_spec(T).loader is loader
    assert packages.load(T).f(1) == ("wrapped", None, ("f", 1))
    sys.meta_path.remove(theirs)
    patches.revert()


@pytest.mark.parametrize("again", [False, True])
def test_a_revert_while_a_consumer_is_executing(packages, mark, again):
    packages.write(
        CONSUMER,
        "from made_up.target import f, LIMIT\nimport made_up.hook\nmade_up.hook.run()\n",
    )
    packages.write(T, "LIMIT = [3]\ndef f(x): return ('f', x)\n")
    packages.write("made_up.hook", "")

    def double(value):
        return [value[0] * 2]

    patches = PatchSet(
        [
            Wrap(T, "f", mark, "a"),
            Wrap(CONSUMER, "f", mark, "a"),
            Replace(T, "LIMIT", double, "a"),
            Replace(CONSUMER, "LIMIT", double, "a"),
        ]
    )

    def run():
        patches.revert()
        if again:
            patches.install()

    packages.load("made_up.hook").run = run
    patches.install()
    consumer, target = packages.load(CONSUMER), packages.load(T)
    if again:
        assert consumer.f(1) == target.f(1) == ("wrapped", None, ("f", 1))
        assert consumer.LIMIT == target.LIMIT == [6]
        assert patches.foreign == ()
        patches.revert()
    assert consumer.f is target.f
    assert consumer.LIMIT is target.LIMIT
    assert (consumer.f(1), consumer.LIMIT) == (("f", 1), [3])


def test_a_revert_while_a_consumer_is_verified(packages, mark):
    patches = PatchSet(
        [Wrap(T, "f", mark, "a"), Wrap(CONSUMER, "f", mark, "a")],
        verify=lambda module, patch: patches.revert() if patch.module == CONSUMER else None,
    )
    patches.install()
    consumer, target = packages.load(CONSUMER), packages.load(T)
    assert consumer.f is target.f
    assert consumer.f(1) == ("f", 1)


@pytest.mark.parametrize("position", [0, 1])
def test_a_finder_that_asks_all_the_others_is_no_endless_loop(packages, mark, position):
    asked = []

    def ask(fullname, path, target):
        asked.append(fullname)
        for finder in sys.meta_path:
            if finder is not theirs:
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    return spec
        return None

    theirs = _Finder(T, ask)
    patches = PatchSet([Wrap(T, "f", mark, "a")])
    patches.install()
    sys.meta_path.insert(position, theirs)
    assert packages.load(T).f(1) == ("wrapped", None, ("f", 1))
    assert asked == [T]
    sys.meta_path.remove(theirs)
    patches.revert()


def test_a_loader_without_exec_module_is_refused(packages, mark):
    packages.load("made_up")
    (packages.root / "made_up" / "space").mkdir()
    importlib.invalidate_caches()
    patches = PatchSet([Add("made_up.space", "x", lambda module: 1, "a")])
    patches.install()
    with pytest.raises(PatchError, match=r"the module 'made_up\.space'") as caught:
        packages.load("made_up.space")
    assert caught.value.found == "its loader NoneType has no exec_module()"
    patches.revert()
