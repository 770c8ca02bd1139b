"""Find symbols in the source of a package, importing nothing."""

from __future__ import annotations

import ast
import builtins
import os
import re
import warnings

from .bindings import TYPES_ONLY, bindings_of, decorator_names
from .constructors import WITHOUT_FIELDS, constructor
from .finding import Finding, first_found
from .parameters import of_arguments, without_first
from .scopes import DoubtError
from .targets import EXTENSIONS, Definition, External, Module, Target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .bindings import Binding
    from .finding import SymbolKind
    from .signature import Signature

    Trail = frozenset[tuple[str, str]]

_LAZY = r"""\s*:\s*["']([\w.]*):?(\w*)["']"""
_START: Trail = frozenset()
# The most tangled symbol that we ask vLLM for takes 34; a knot of star imports takes any number.
_MAX_STEPS = 2_000


class _TangledError(Exception):
    """More ways lead to a name than can be followed."""


class SourceTree:
    """The source of one package; ``root`` is the directory of the package itself.

    Files are read once and parsed as little as possible; nothing is imported.
    """

    def __init__(self, root: str | os.PathLike[str], package: str) -> None:
        self.root = os.fspath(root)
        self.package = package
        self.notes: list[str] = []
        self._modules: dict[str, Module | None] = {}
        self._known: dict[tuple[str, str], Target | None] = {}
        self._findings: dict[str, Finding] = {}
        self._steps = 0

    def probe(self, symbol: str, candidates: Sequence[str] = ()) -> Finding:
        """Find ``symbol`` ("package.module:Qual.name"), else one of the ``candidates``.

        Never raises for what the tree holds: what is missing or unreadable is ``absent``, and
        the note says why. A class comes with the signature of its constructor, a decorated
        function with the one it was written with.
        """
        return first_found(self._find, symbol, candidates)

    def files(self) -> list[str]:
        """The files read so far, relative to ``root``, in order."""
        return sorted(
            self._relative(module.path)
            for module in self._modules.values()
            if module is not None and module.was_read
        )

    def _relative(self, path: str) -> str:
        # Every path was joined to the root; relpath() would ask for the current directory.
        return path.removeprefix(self.root).lstrip(os.sep).replace(os.sep, "/") or "."

    def _find(self, symbol: str) -> Finding:
        # Several adapters ask for the same symbol, and each again when it makes its patches.
        if symbol not in self._findings:
            self._findings[symbol] = self._read(symbol)
        return self._findings[symbol]

    def _read(self, symbol: str) -> Finding:
        # A module that could not be read by pieces is parsed as a whole: once for each, so
        # this ends.
        while True:
            self.notes = []
            self._known = {}
            self._steps = 0
            try:
                with warnings.catch_warnings():
                    # Odd escapes in the probed source are not our caller's concern.
                    warnings.simplefilter("ignore")
                    return self._look_up(symbol)
            except DoubtError as doubt:
                doubt.source.parse_whole()
            except RecursionError:
                return Finding(symbol, "absent", note="nested or re-exported too deeply")
            except _TangledError:
                return Finding(symbol, "absent", note="re-exported or inherited in too many ways")

    def _look_up(self, symbol: str) -> Finding:
        module_name, _, qualified = symbol.partition(":")
        module = self.module(module_name)
        target: Target | None = None
        if module is None:
            self.note(f"no module {module_name}")
        elif not qualified:
            target = Definition("module", module)
        else:
            target = self.attributes(Definition("module", module), qualified.split("."), _START)
        if target is None:
            return Finding(symbol, "absent", note="; ".join(self.notes))
        if isinstance(target, External):
            self.note("defined outside the tree")
            # The symbol is there; what it is cannot be read here.
            return Finding(symbol, "found", location=target.name, note="; ".join(self.notes))
        signature = self.signature(target)
        return Finding(
            symbol,
            "found",
            target.kind,
            signature,
            str(target),
            self._relative(target.module.path),
            getattr(target.node, "lineno", None),
            "; ".join(self.notes),
        )

    def note(self, text: str) -> None:
        if text and text not in self.notes:
            self.notes.append(text)

    def _step(self) -> None:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise _TangledError

    def signature(self, target: Definition) -> Signature | None:
        """How ``target`` is called; None for what is no function or readable class."""
        if target.kind == "class":
            return constructor(self, target)
        if target.kind != "function":
            return None
        assert isinstance(target.node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        signature = of_arguments(target.node.args)
        if target.is_member and "staticmethod" not in decorator_names(target.node):
            signature = without_first(signature)
        return signature

    def module(self, name: str) -> Module | None:
        """The module ``name`` of the tree, or None."""
        if name not in self._modules:
            self._modules[name] = self._locate(name)
        return self._modules[name]

    def _locate(self, name: str) -> Module | None:
        first, *rest = name.split(".")
        if first != self.package or not all(part.isidentifier() for part in rest):
            return None
        path = os.path.join(self.root, *rest)
        if os.path.isfile(init := os.path.join(path, "__init__.py")):
            return Module(name, init, is_package=True, note=self.note)
        if rest and os.path.isfile(f"{path}.py"):
            return Module(name, f"{path}.py", is_package=False, note=self.note)
        if os.path.isdir(path):
            return Module(name, path, is_package=True, note=self.note)
        if rest and os.path.isdir(parent := os.path.dirname(path)):
            for file in sorted(os.listdir(parent)):
                if file.startswith(f"{rest[-1]}.") and file.endswith(EXTENSIONS):
                    return Module(
                        name, os.path.join(parent, file), is_package=False, note=self.note
                    )
        return None

    def attributes(self, target: Target | None, names: list[str], trail: Trail) -> Target | None:
        """Follow ``names`` from ``target``: attributes of modules, members of classes."""
        for name in names:
            if isinstance(target, External):
                target = External(f"{target.name}.{name}")
            elif target is None:
                return None
            elif target.kind == "module":
                target = self.name_in(target.module, name, trail)
            elif target.kind == "class":
                target = self.member(target, name, trail)
            else:
                self.note(f"{target} is a {target.kind}, its attributes are not readable")
                return None
        return target

    def expression(self, module: Module, node: ast.expr, trail: Trail = _START) -> Target | None:
        """What a name, dotted name or subscripted name at module level stands for."""
        self._step()
        names: list[str] = []
        while isinstance(node, ast.Attribute | ast.Subscript):
            if isinstance(node, ast.Attribute):
                names.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        key = (module.name, node.id)
        # Every field of a class asks for the same few names.
        found = self._known[key] if key in self._known else self.name_in(module, node.id, trail)
        if not trail:
            self._known[key] = found
        if found is None and node.id in _BUILTINS:
            found = External(f"builtins.{node.id}")
        return self.attributes(found, names, trail)

    def name_in(self, module: Module, name: str, trail: Trail) -> Target | None:
        """What the attribute ``name`` of a module is after its import, or None."""
        self._step()
        if (module.name, name) in trail:
            self.note(f"{module.name}:{name} is imported in a circle")
            return None
        found = self._readable_in(module, name, trail | {(module.name, name)})
        # Beside a statement that could not be read, the others may not be what holds.
        return None if module.scope.unread(name) else found

    def _readable_in(self, module: Module, name: str, trail: Trail) -> Target | None:
        bindings = bindings_of(name, module.scope.binders(name))
        at_runtime = [b for b in bindings if b.rank != TYPES_ONLY]
        if sum(not _is_star(b) for b in at_runtime) > 1:
            self.note(f"{module.name}:{name} is bound more than once")
        for binding in at_runtime:
            if found := self._bound(module, name, binding, trail):
                return found
        if bindings_of("__getattr__", module.scope.binders("__getattr__")):
            if found := self._lazy(module, name, trail):
                return found
            for binding in bindings:
                if binding.rank == TYPES_ONLY and (
                    found := self._bound(module, name, binding, trail)
                ):
                    return found
            self.note(f"{module.name} has a __getattr__ which may know {name}")
        elif len(bindings) > len(at_runtime):
            self.note(f"{module.name}:{name} is there for type checkers only")
        self._note_foreign_stars(module, name, at_runtime)
        submodule = self.module(f"{module.name}.{name}")
        if submodule is not None:
            return Definition("module", submodule)
        if module.error:
            self.note(f"{module.name}: {module.error}")
        return None

    def member(self, cls: Definition, name: str, trail: Trail = _START) -> Target | None:
        """What a class has under ``name``, be it inherited; None if nobody has it."""
        if found := self.own_member(cls, name, trail):
            return found
        assert cls.body is not None
        if cls.body.unread(name):
            return None  # a base's is not what the class has
        if (str(cls), name) in trail:
            self.note(f"{cls} inherits from itself")
            return None
        trail = trail | {(str(cls), name)}
        assert isinstance(cls.node, ast.ClassDef)
        for base in cls.node.bases:
            target = self.expression(cls.module, base, trail)
            if isinstance(target, Definition) and target.kind == "class":
                if found := self.member(target, name, trail):
                    return found
            elif not isinstance(target, External) or target.last not in WITHOUT_FIELDS:
                self.note(f"a base of {cls} is not readable: {ast.unparse(base)}")
        return None

    def own_member(self, cls: Definition, name: str, trail: Trail = _START) -> Target | None:
        """What the body of a class itself binds to ``name``."""
        self._step()
        assert cls.body is not None
        if (key := (str(cls), f".{name}")) in trail:
            return None
        if cls.body.unread(name):
            return None
        trail = trail | {key}
        for binding in bindings_of(name, cls.body.binders(name)):
            node = binding.node
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                kind: SymbolKind = "value" if _is_property(node) else "function"
                return Definition(kind, cls.module, f"{cls.name}.{name}", node, is_member=True)
            if isinstance(binding.value, ast.Name) and binding.value.id != name:
                # The right side sees the class body before the module.
                other = self.own_member(cls, binding.value.id, trail) or self.name_in(
                    cls.module, binding.value.id, trail
                )
                if isinstance(other, Definition) and other.kind == "function":
                    other = Definition("function", other.module, other.name, other.node)
                    other.is_member = True
                if other is not None:
                    return other
            if found := self._bound(cls.module, name, binding, trail, cls):
                return found
        return None

    def _bound(
        self,
        module: Module,
        name: str,
        binding: Binding,
        trail: Trail,
        cls: Definition | None = None,
    ) -> Target | None:
        """What one binding, of a module or of the class ``cls`` in it, gives the name."""
        node, alias, value = binding.node, binding.alias, binding.value
        if alias is not None:
            return self._imported(module, name, node, alias, trail)
        qualified = f"{cls.name}.{name}" if cls else name
        scope = cls.body if cls and cls.body else module.scope
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return Definition("function", module, qualified, node)
        if isinstance(node, ast.ClassDef):
            return Definition("class", module, qualified, node, scope.body_of(node))
        if isinstance(value, ast.Lambda):
            return Definition("function", module, qualified, value, is_member=cls is not None)
        if isinstance(value, ast.Name | ast.Attribute) and (
            found := self.expression(module, value, trail)
        ):
            return found
        return Definition("value", module, qualified, node)

    def _imported(
        self, module: Module, name: str, node: ast.stmt, alias: ast.alias, trail: Trail
    ) -> Target | None:
        if not isinstance(node, ast.ImportFrom):
            return self._module_or_external(
                alias.name if alias.asname else alias.name.partition(".")[0]
            )
        origin = self._module_or_external(module.absolute(node))
        if alias.name != "*":
            return self.attributes(origin, [alias.name], trail)
        # A star out of the tree may bring anything, so it cannot be said to bring this.
        if isinstance(origin, Definition) and self._exports(origin.module, name):
            return self.name_in(origin.module, name, trail)
        return None

    def _note_foreign_stars(self, module: Module, name: str, bindings: list[Binding]) -> None:
        for binding in filter(_is_star, bindings):
            assert isinstance(binding.node, ast.ImportFrom)
            origin = module.absolute(binding.node)
            if origin.partition(".")[0] != self.package:
                self.note(f"the star import of {origin} may bring {name}")

    def _module_or_external(self, name: str) -> Target | None:
        if name.partition(".")[0] != self.package:
            return External(name)
        module = self.module(name)
        if module is None:
            self.note(f"no module {name}")
            return None
        return Definition("module", module)

    def _exports(self, module: Module, name: str) -> bool:
        """Whether ``from module import *`` brings ``name``, if it is there."""
        names: list[str] = []
        nodes = module.scope.binders("__all__")
        bindings = bindings_of("__all__", nodes)
        if not bindings:
            return not name.startswith("_")
        if any(binding.alias is not None for binding in bindings):
            return True  # another module's: anything may be in it
        for node in nodes:
            # A name of its own: `other.__all__` is not this one.
            if any(isinstance(n, ast.Name) and n.id == "__all__" for n in ast.walk(node)):
                names += [
                    child.value
                    for child in ast.walk(node)
                    if isinstance(child, ast.Constant) and isinstance(child.value, str)
                ]
                if any(isinstance(child, ast.Attribute) for child in ast.walk(node)):
                    # `__all__ += other.__all__` and the like: anything may be in it.
                    return True
        return name in names

    def _lazy(self, module: Module, name: str, trail: Trail) -> Target | None:
        """Read the table of a module-level ``__getattr__``: {"name": "module:attribute"}."""
        text, entry = module.source.text, re.compile(_LAZY)
        for key in (f'"{name}"', f"'{name}'"):
            place = text.find(key)
            while place >= 0:
                if match := entry.match(text, place + len(key)):
                    origin, attribute = match.groups()
                    for full in (_join(module.package, origin), f"{module.package}.{origin}"):
                        if found := self.module(full):
                            return self.name_in(found, attribute or name, trail)
                place = text.find(key, place + 1)
        return None


_BUILTINS = frozenset(dir(builtins))


def _join(package: str, module: str) -> str:
    """The full name of ``module``, which may start with dots."""
    level = len(module) - len(module.lstrip("."))
    if not level:
        return module
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - level + 1], module[level:]])


def _is_star(binding: Binding) -> bool:
    return binding.alias is not None and binding.alias.name == "*"


def _is_property(node: ast.AST) -> bool:
    return any(
        name.endswith("property") or name in ("setter", "getter", "deleter")
        for name in decorator_names(node)
    )
