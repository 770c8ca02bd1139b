"""All or nothing: failures, other people's patches, several sets."""

from __future__ import annotations

import functools

import pytest

from vllm_compat.errors import PatchError
from vllm_compat.patching import Add, PatchSet, Replace, Wrap

T, CONSUMER = "made_up.target", "made_up.consumer"


@pytest.mark.parametrize(
    ("bad", "found"),
    [
        (lambda mark: Wrap(CONSUMER, "absent", mark, "bad"), "no such attribute"),
        (lambda mark: Wrap(CONSUMER, "C.absent", mark, "bad"), "no such attribute"),
        (
            lambda mark: Wrap(CONSUMER, "Absent.x", mark, "bad"),
            "made_up.consumer.Absent does not exist",
        ),
        (
            lambda mark: Wrap(CONSUMER, "use.x", mark, "bad"),
            "made_up.consumer.use is function of made_up.consumer.use",
        ),
        (
            lambda mark: Wrap(CONSUMER, "C.size", mark, "bad"),
            "TypeError: builtins.int is not callable; use Replace for it",
        ),
        (
            lambda mark: Add(CONSUMER, "use", lambda module: 1, "bad"),
            "it is already there: function of made_up.consumer.use",
        ),
        (lambda mark: Replace(CONSUMER, "use", lambda use: 1 / 0, "bad"), "ZeroDivisionError: "),
    ],
)
def test_a_bad_patch_leaves_everything_as_it_was(packages, mark, bad, found):
    consumer, target = packages.load(CONSUMER), packages.load(T)
    before = {**vars(target)}, {**vars(target.C)}, {**vars(consumer)}
    patches = PatchSet([Wrap(T, "f", mark, "a"), Wrap(T, "C.method", mark, "a"), bad(mark)])
    with pytest.raises(PatchError) as caught:
        patches.install()
    assert caught.value.what.startswith(f"cannot patch {bad(mark).describe()}")
    assert caught.value.found.startswith(found)
    assert caught.value.next_step
    assert ({**vars(target)}, {**vars(target.C)}, {**vars(consumer)}) == before
    assert not patches.installed


def test_a_target_that_cannot_be_written_undoes_those_that_were(packages, mark):
    packages.write("made_up.zrigid", "from builtins import dict as Rigid\n")
    target, _ = packages.load(T), packages.load("made_up.zrigid")
    f = target.f
    patches = PatchSet([Wrap(T, "f", mark, "a"), Wrap("made_up.zrigid", "Rigid.get", mark, "a")])
    with pytest.raises(PatchError, match=r"cannot patch a: made_up\.zrigid\.Rigid\.get") as caught:
        patches.install()
    assert isinstance(caught.value.__cause__, TypeError)
    assert target.f is f


def test_verify_sees_every_patch_before_anything_changes(packages, mark):
    consumer, target = packages.load(CONSUMER), packages.load(T)
    f, seen = target.f, []

    def verify(module, patch):
        seen.append((module, patch, target.f is f))
        if patch.path == "C.prop":
            raise LookupError("unfit")

    declared = [
        Wrap(CONSUMER, "use", mark, "a"),
        Wrap(T, "f", mark, "a"),
        Wrap(T, "C.prop", mark, "b"),
    ]
    patches = PatchSet(declared, verify=verify)
    with pytest.raises(PatchError, match=r"b: made_up\.target\.C\.prop") as caught:
        patches.install()
    assert isinstance(caught.value.__cause__, LookupError)
    assert seen == [
        (consumer, declared[0], True),
        (target, declared[1], True),
        (target, declared[2], True),
    ]
    assert target.f is f


def test_twice_is_once(packages, mark):
    target = packages.load(T)
    f = target.f
    patches = PatchSet([Wrap(T, "f", mark, "a")])
    patches.revert()
    patches.install()
    wrapper = target.f
    patches.install()
    assert target.f is wrapper
    assert patches.installed
    patches.revert()
    patches.revert()
    assert target.f is f
    patches.install()
    assert target.f(1) == ("wrapped", None, ("f", 1))
    patches.revert()


def test_a_patch_over_ours_blocks_the_revert(packages, mark):
    target = packages.load(T)
    f, method = target.f, vars(target.C)["method"]
    patches = PatchSet([Wrap(T, "f", mark, "a"), Wrap(T, "C.method", mark, "b")])
    patches.install()
    ours, ours_method = target.f, vars(target.C)["method"]

    @functools.wraps(ours)
    def theirs(x):
        return ours(x)

    target.f = theirs
    with pytest.raises(PatchError, match=r"cannot take off a: made_up\.target\.f") as caught:
        patches.revert()
    assert caught.value.found == (f"found function of {__name__}.theirs, expected our wrapper")
    assert target.f is theirs
    assert vars(target.C)["method"] is ours_method
    assert patches.installed
    del target.f
    with pytest.raises(PatchError, match="found nothing, expected our wrapper"):
        patches.revert()
    target.f = ours
    patches.revert()
    assert (target.f, vars(target.C)["method"]) == (f, method)


def test_a_patch_before_ours_is_reported_and_kept(packages, mark):
    import wrapt

    target = packages.load(T)

    def theirs(wrapped, instance, args, kwargs):
        return ("theirs", wrapped(*args, **kwargs))

    f = target.f

    @functools.wraps(f)
    def plain(x):
        return ("plain", f(x))

    target.f = plain
    foreign = wrapt.FunctionWrapper(vars(target.C)["cls"], theirs)
    target.C.cls = foreign
    patches = PatchSet(
        [
            Wrap(T, "f", mark, "a"),
            Wrap(T, "C.cls", mark, "b"),
            Wrap(T, "C.static", mark, "c"),
            Wrap(T, "C.prop", mark, "d"),
        ]
    )
    assert patches.foreign == ()
    patches.install()
    assert patches.foreign == (
        f"a: made_up.target.f: already wrapped by function of {__name__}.plain",
        f"b: made_up.target.C.cls: already wrapped by FunctionWrapper of {__name__}.theirs",
    )
    assert target.f(1) == ("wrapped", None, ("plain", ("f", 1)))
    assert target.C.cls(1) == ("wrapped", target.C, ("theirs", ("cls", "C", 1)))
    patches.revert()
    assert target.f is plain
    assert vars(target.C)["cls"] is foreign
    assert patches.foreign == ()


def test_two_live_sets_may_not_share_a_place(packages, mark):
    target = packages.load(T)
    first = PatchSet([Wrap(T, "f", mark, "first")])
    second = PatchSet([Wrap(T, "C.method", mark, "second"), Wrap(T, "f", mark, "second")])
    first.install()
    ours = target.f
    with pytest.raises(PatchError, match=r"cannot patch second: made_up\.target\.f") as caught:
        second.install()
    assert caught.value.found == (
        "another live set patches the same object already: first: made_up.target.f"
    )
    assert target.f is ours
    assert target.C().method(1) == ("method", 1)
    first.revert()
    second.install()
    assert target.f(1) == ("wrapped", None, ("f", 1))
    second.revert()


def test_two_sets_on_one_module_are_independent(packages, mark):
    first = PatchSet([Wrap(T, "f", mark, "first")])
    second = PatchSet([Wrap(T, "C.method", mark, "second")])
    first.install()
    second.install()
    target = packages.load(T)
    c = target.C()
    assert target.f(1) == ("wrapped", None, ("f", 1))
    assert c.method(1) == ("wrapped", c, ("method", 1))
    first.revert()
    assert target.f(1) == ("f", 1)
    assert c.method(1) == ("wrapped", c, ("method", 1))
    second.revert()
    assert c.method(1) == ("method", 1)


def test_a_class_reached_through_two_modules_is_patched_once(packages, mark):
    declared = [Wrap(T, "C.method", mark, "a"), Wrap(CONSUMER, "C.method", mark, "a")]
    early, late = PatchSet(declared), PatchSet(declared)
    early.install()
    consumer = packages.load(CONSUMER)
    c = consumer.C()
    assert c.method(1) == ("wrapped", c, ("method", 1))
    early.revert()
    assert c.method(1) == ("method", 1)
    late.install()
    assert c.method(1) == ("wrapped", c, ("method", 1))
    late.revert()
    assert c.method(1) == ("method", 1)


def test_two_different_patches_of_a_class_through_two_modules_are_refused(packages, mark):
    packages.load(CONSUMER)
    patches = PatchSet(
        [
            Wrap(T, "C.method", mark, "a"),
            Wrap(CONSUMER, "C.method", lambda w, i, a, k: None, "b"),
        ]
    )
    with pytest.raises(PatchError) as caught:
        patches.install()
    assert "this set patches the same object already" in caught.value.found


@pytest.mark.parametrize("consumer_first", [True, False])
def test_a_replaced_value_that_a_consumer_copied_is_replaced_once(packages, consumer_first):
    packages.write("made_up.limits", "LIMIT = [3]\n")
    packages.write("made_up.reader", "from made_up.limits import LIMIT\n")

    def double(value):
        return [value[0] * 2]

    patches = PatchSet(
        [
            Replace("made_up.limits", "LIMIT", double, "a"),
            Replace("made_up.reader", "LIMIT", double, "a"),
        ]
    )
    if consumer_first:
        packages.load("made_up.reader")
    patches.install()
    reader, limits = packages.load("made_up.reader"), packages.load("made_up.limits")
    assert (reader.LIMIT, limits.LIMIT) == ([6], [6])
    patches.revert()
    assert reader.LIMIT is limits.LIMIT
    assert reader.LIMIT == [3]


def test_a_target_that_changes_while_a_factory_runs_is_not_overwritten(packages):
    target = packages.load(T)

    def meddle(f):
        target.f = len
        return f

    patches = PatchSet([Replace(T, "f", meddle, "a")])
    with pytest.raises(PatchError, match=r"cannot patch a: made_up\.target\.f"):
        patches.install()
    assert target.f is len


def test_a_revert_during_the_install_wins(packages, mark):
    target = packages.load(T)
    f = target.f
    patches = PatchSet([Wrap(T, "f", mark, "a")], verify=lambda module, patch: patches.revert())
    patches.install()
    assert target.f is f
    assert not patches.installed
