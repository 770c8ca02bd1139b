"""Any package or script that uses vLLM, judged against one vLLM from sources alone.

Every import, call and subclass that ``contracts.usage`` sees is looked up. What cannot be told for
certain is no finding: it is listed as not judged, with the reason.
"""

from __future__ import annotations

import ast
import importlib.util
import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from vllm_compat.checking.incompatibility import Incompatibility
from vllm_compat.checking.packages.guards import Guards, Lines
from vllm_compat.checking.packages.lookup import TRANSPARENT, Lookup, UnknownError
from vllm_compat.checking.packages.overrides import refused
from vllm_compat.context import dotted
from vllm_compat.contracts import usage
from vllm_compat.contracts.usage import Use
from vllm_compat.discovery import package_root
from vllm_compat.errors import NotInstalledError
from vllm_compat.probe import Finding, Signature
from vllm_compat.probe.bindings import decorator_names
from vllm_compat.probe.parameters import of_arguments, without_first

if TYPE_CHECKING:
    from vllm_compat.checking.incompatibility import Kind
    from vllm_compat.context import Tree

# Called by Python with what the subclass itself is given, so their parameters are its own.
_OWN_PARAMETERS = frozenset({"__init__", "__new__", "__post_init__", "__init_subclass__"})


class NotJudged(NamedTuple):
    """Something that might not work, and why that could not be told.

    Attributes:
        file: the source file.
        line: in it; 0 where it is the file as a whole.
        symbol: what it uses, ``"module:Qualified.name"``; empty for a file as a whole.
        reason: one line.
    """

    file: str
    line: int
    symbol: str
    reason: str


class PackageReport(NamedTuple):
    """What came of judging one package.

    Attributes:
        target: as it was given.
        root: its folder or file.
        incompatibilities: what does not work, by file and line.
        looked_at: how many imports, calls, subclasses, overrides and calls of ``super()``.
        not_judged: what could not be told, by file and line.
    """

    target: str
    root: str
    incompatibilities: tuple[Incompatibility, ...]
    looked_at: int
    not_judged: tuple[NotJudged, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            **self._asdict(),
            "incompatibilities": [found.to_dict() for found in self.incompatibilities],
            "not_judged": [entry._asdict() for entry in self.not_judged],
        }


def judge_package(target: str, tree: Tree) -> PackageReport:
    """Judge every use of vLLM in ``target``, which is read and never imported.

    Args:
        target: the name of a package that Python would find, a folder, or a ``.py`` file.
        tree: the vLLM to judge against: its ``SourceTree``, or a ``RecordedTree``.

    Raises:
        NotInstalledError: there is no such package, folder or file.
    """
    root, package = locate(target)
    vllm = Lookup(tree)
    found: list[Incompatibility] = []
    not_judged: list[NotJudged] = []
    looked_at = 0
    for module, file in usage.modules(root, package):
        try:
            syntax = usage.parsed(file)
        except usage.UnreadableFileError as error:
            not_judged.append(NotJudged(file, 0, "", f"cannot be parsed: {error}"))
            continue
        if syntax.body:
            judged = _File(vllm, module, file, syntax)
            judged.judge()
            found += judged.found
            not_judged += judged.not_judged
            looked_at += judged.looked_at
    return PackageReport(
        target, root, tuple(dict.fromkeys(sorted(found))), looked_at, tuple(sorted(not_judged))
    )


def locate(target: str) -> tuple[str, str]:
    """The folder or file that ``target`` names, and its module name. Imports nothing.

    Raises:
        NotInstalledError: there is no such package, folder or file.
    """
    if os.path.isdir(target) or (target.endswith(".py") and os.path.isfile(target)):
        path = os.path.abspath(target)
        return path, os.path.basename(path).removesuffix(".py")
    first, *rest = target.split(".")
    if root := package_root(first):
        path = os.path.join(root, *rest)
        for found in (path, f"{path}.py"):
            if os.path.exists(found):
                return found, target
    elif not rest and first.isidentifier():
        spec = importlib.util.find_spec(first)  # of a top-level name: this imports nothing
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            return spec.origin, target
    raise NotInstalledError(
        f"there is no {target} to be judged",
        found="no package, folder or file of that name",
        needed="an importable package's name, a folder, or a .py file",
        next_step="install the package in this environment, or name its folder",
    )


class _File:
    """One source file being judged."""

    def __init__(self, vllm: Lookup, module: str, file: str, syntax: ast.Module) -> None:
        self.vllm = vllm
        self.module = module
        self.file = file
        self.nodes = usage.at_runtime(syntax)
        self.guards = Guards(syntax)
        self.imports = list(usage.imports(self.nodes, module, "vllm"))
        self.broken = {use for _, use in self.imports if self._is_broken(use)}
        self.found: list[Incompatibility] = []
        self.not_judged: list[NotJudged] = []
        self.looked_at = 0

    def judge(self) -> None:
        """Judge all of it."""
        for _, use in self.imports:
            self._judge(use, self._import_problems, ("ImportError", "ModuleNotFoundError"))
        for use in usage.calls(self.nodes, self.module, self.names):
            self._judge(use, self._call_problems, ("TypeError", "AttributeError"))
        for node in self.nodes:
            if isinstance(node, ast.ClassDef):
                self._judge_class(node)

    @cached_property
    def names(self) -> Mapping[str, str]:
        """What the names that surely stand for something of vLLM stand for."""
        good = [(name, use) for name, use in self.imports if use not in self.broken]
        known = {name for name, _ in good}
        for name, use in self.imports:
            # Calls of what has moved are judged where it is now.
            if name not in known and len(new := self.vllm.whereabouts.of(use.symbol)) == 1:
                good.append((name, use._replace(symbol=new[0])))
        meanings: dict[str, set[str]] = {}
        for name, use in good:
            meanings.setdefault(name, set()).add(use.symbol)
        others = set(self._bound_otherwise())
        return {
            name: symbol
            for name, symbol in usage.local_names(good, "vllm").items()
            if len(meanings.get(name, ())) < 2 and name not in others
        }

    def _works(self, lines: Lines) -> bool:
        return not any(lines[0] <= use.line <= lines[1] for use in self.broken)

    def _is_broken(self, use: Use) -> bool:
        try:
            return not use.symbol.endswith(":*") and self.vllm.find(use.symbol).status == "absent"
        except UnknownError:
            return False

    def _bound_otherwise(self) -> Iterator[str]:
        """Local names that are also bound to something that is not vLLM's."""
        for node in self.nodes:
            line = getattr(node, "lineno", 0)
            if isinstance(node, ast.arg):
                yield node.arg
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield node.name
            elif self.guards.is_fallback(line):
                continue  # `LLM = None` where the import of LLM failed
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, ast.Import | ast.ImportFrom) and not self._is_of_vllm(node):
                yield from (alias.asname or alias.name for alias in node.names)

    @staticmethod
    def _is_of_vllm(node: ast.Import | ast.ImportFrom) -> bool:
        if isinstance(node, ast.Import):
            return any(f"{alias.name}.".startswith("vllm.") for alias in node.names)
        return not node.level and f"{node.module}.".startswith("vllm.")

    def _judge(self, use: Use, problems: Any, raises: tuple[str, ...]) -> None:
        """Look at one use; ``problems`` gives what is wrong with it."""
        self.looked_at += 1
        try:
            wrong = list(problems(use))
            excuse = wrong and self.guards.excuse(use.line, raises, self._works)
            if excuse:
                raise UnknownError(f"{wrong[0].what}; {excuse}")
            self.found += wrong
        except UnknownError as unknown:
            self.not_judged.append(NotJudged(self.file, use.line, use.symbol, str(unknown)))

    def _problem(
        self, use: Use, kind: Kind, what: str, next_step: str, symbol: str = ""
    ) -> Incompatibility:
        return Incompatibility(
            self.file,
            use.line,
            self.module,
            symbol or use.symbol,
            kind,
            what,
            next_step=next_step,
        )

    def _import_problems(self, use: Use) -> Iterator[Incompatibility]:
        if use.symbol.endswith(":*"):
            raise UnknownError("a star import: which names it is for is not read")
        if self.vllm.find(use.symbol).status == "absent":
            yield self._gone(use, use.symbol)

    def _gone(self, use: Use, symbol: str) -> Incompatibility:
        gone = self.vllm.gone(symbol)
        name = symbol.rpartition(":")[2].rpartition(".")[2]
        new = self.vllm.whereabouts.of(symbol)
        what = f"vLLM has no {gone.replace(':', '.')}"
        if len(new) == 1:
            return self._problem(
                use,
                "moved",
                f"{what}; there is {new[0]}",
                f"take it from {new[0].partition(':')[0]} where that is there",
                symbol,
            )
        if new:
            what += f"; a {name} is in {', '.join(place.partition(':')[0] for place in new)}"
        return self._problem(
            use, "gone", what, "use what this vLLM has in its place, or a vLLM that has it", symbol
        )

    def _call_problems(self, use: Use) -> Iterator[Incompatibility]:
        finding = self.vllm.find(use.symbol)
        if finding.status == "absent":
            yield self._gone(use, use.symbol)
            return
        if finding.signature is None:
            raise UnknownError(
                finding.note or f"what it takes is not written down: a {finding.kind}"
            )
        own = 0
        if finding.kind == "function" and self.vllm.is_member(use.symbol):
            node = self.vllm.node(finding)
            if node is None:
                raise UnknownError("whether it is called with its instance is not known")
            # Called through its class, a plain method is given its instance by hand.
            own = 0 if {"staticmethod", "classmethod"} & set(decorator_names(node)) else 1
        yield from self._misfits(use, finding, max(use.positional - own, 0))

    def _misfits(self, use: Use, finding: Finding, positional: int) -> Iterator[Incompatibility]:
        """Every reason why a call does not bind."""
        signature = finding.signature
        assert signature is not None
        problems = [
            problem
            for problem in signature.problems(positional, use.keywords)
            # What is not spelled out may be in the `*args` or `**kwargs` of the call.
            if not (use.open_ended and problem.startswith("missing"))
        ]
        if problems:
            self.vllm.check_decorators(finding)
        name = use.symbol.rpartition(":")[2]
        for problem in problems:
            kind, said, next_step = _told(problem)
            what = f"{name}() {said}; it takes {_shortened(signature)}"
            yield self._problem(use, kind, what, next_step)

    def _judge_class(self, node: ast.ClassDef) -> None:
        bases = list(usage.subclasses([node], self.module, self.names))
        for base in bases:
            self._judge(base, self._import_problems, ("AttributeError",))
            for method in node.body:
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                    self._judge_override(base, method)
        if len(bases) == 1 == len(node.bases):
            for call in _super_calls(node):
                assert isinstance(call.func, ast.Attribute)
                use = usage.call_of(f"{bases[0].symbol}.{call.func.attr}", self.module, call)
                self._judge(use, self._super_problems, ("TypeError", "AttributeError"))

    def _super_problems(self, use: Use) -> Iterator[Incompatibility]:
        base, _, name = use.symbol.rpartition(".")
        if name == "__init__":
            # Be it written or generated, it takes what the class takes.
            finding = self.vllm.find(base)
        elif name.startswith("__"):
            return
        else:
            finding = self.vllm.find(use.symbol)
        if finding.status == "absent":
            yield self._gone(use, use.symbol)
        elif finding.signature is not None:
            yield from self._misfits(use, finding, use.positional)

    def _judge_override(self, base: Use, method: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if method.name in _OWN_PARAMETERS:
            return
        symbol = f"{base.symbol}.{method.name}"
        use = Use("subclass", symbol, self.module, method.lineno)
        try:
            finding = self.vllm.find(symbol)
        except UnknownError:
            return  # a method of its own, as far as can be told
        if finding.status == "absent" or finding.signature is None:
            return
        signature = of_arguments(method.args)
        if "staticmethod" not in decorator_names(method):
            signature = without_first(signature)

        def problems(use: Use) -> Iterator[Incompatibility]:
            assert finding.signature is not None
            if wrong := list(refused(signature, finding.signature)):
                if set(decorator_names(method)) - TRANSPARENT:
                    raise UnknownError("its decorator may change how it is called")
                self.vllm.check_decorators(finding)
            for kind, said in wrong:
                takes = _shortened(finding.signature)
                what = f"{method.name}() overrides one that takes {takes}: {said}"
                yield self._problem(use, kind, what, "give the method the parameters of vLLM's")

        self._judge(use, problems, ())


def _told(problem: str) -> tuple[Kind, str, str]:
    """What a problem of binding means: what vLLM did, what is wrong, what to do."""
    name = problem.rpartition(" ")[2]
    if problem.startswith("unexpected keyword"):
        said = f"is given the keyword {name}, which it does not take"
        return "parameter removed", said, f"drop {name}, or pass it only where it is taken"
    if problem.startswith("missing required"):
        said = f"is not given {name}, which it requires"
        return "parameter became required", said, f"pass {name}"
    if problem.endswith("given twice"):
        name = problem.partition(" ")[0]
        said = f"is given {name} by position and by keyword"
        return "parameter added", said, "pass the arguments by keyword"
    return "parameter removed", f"is given {problem}", "pass what it takes, by keyword"


def _super_calls(cls: ast.ClassDef) -> Iterator[ast.Call]:
    """Calls of ``super().method(...)`` in the methods of ``cls``."""
    left: list[ast.AST] = list(cls.body)
    while left:
        node = left.pop()
        if isinstance(node, ast.ClassDef):
            continue
        left += ast.iter_child_nodes(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            held = node.func.value
            if isinstance(held, ast.Call) and dotted(held.func) == "super" and not held.args:
                yield node


def _shortened(signature: Signature, limit: int = 200) -> str:
    text = str(signature)
    return text if len(text) <= limit else f"{text[: limit - 4]}...)"
