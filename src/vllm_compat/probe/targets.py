"""What a name of the probed package can stand for."""

from __future__ import annotations

from .scopes import Source

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from collections.abc import Callable

    from .finding import SymbolKind
    from .scopes import Scope

EXTENSIONS = (".so", ".pyd")


class External:
    """A name which leads out of the tree, such as ``torch.nn.Module``."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def last(self) -> str:
        return self.name.rpartition(".")[2]


class Module:
    """One module of the tree; its file is read when a name in it is first looked up."""

    def __init__(self, name: str, path: str, is_package: bool, note: Callable[[str], None]) -> None:
        self.name = name
        self.path = path
        self.package = name if is_package else name.rpartition(".")[0]
        self.error = ""
        self._note = note
        self._source: Source | None = None

    @property
    def source(self) -> Source:
        if self._source is None:
            try:
                self._source = Source(self._read(), self._note_here)
            except (OSError, UnicodeError, LookupError, SyntaxError) as error:
                self.error = f"could not be read: {error}"
                self._source = Source(b"", self._note_here)
        return self._source

    @property
    def was_read(self) -> bool:
        """Whether an answer came out of this module's text."""
        return self._source is not None and self.path.endswith(".py")

    def _read(self) -> bytes:
        if self.path.endswith(EXTENSIONS):
            self.error = "compiled, its names are not readable"
        if not self.path.endswith(".py"):
            return b""
        with open(self.path, "rb") as file:
            return file.read()

    def _note_here(self, text: str) -> None:
        self._note(f"{self.name}: {text}")

    @property
    def scope(self) -> Scope:
        return self.source.scope

    def absolute(self, node: ast.ImportFrom) -> str:
        """The full name of the module that ``from ... import`` names."""
        if not node.level:
            return node.module or ""
        parts = self.package.split(".")
        base = parts[: len(parts) - node.level + 1]
        return ".".join([*base, node.module] if node.module else base)


class Definition:
    """What a name stands for: a function, class, value or module of the tree."""

    def __init__(
        self,
        kind: SymbolKind,
        module: Module,
        name: str = "",
        node: ast.AST | None = None,
        body: Scope | None = None,
        *,
        is_member: bool = False,
    ) -> None:
        self.kind = kind
        self.module = module
        self.name = name
        self.node = node
        self.body = body
        self.is_member = is_member

    def __str__(self) -> str:
        return f"{self.module.name}:{self.name}" if self.name else self.module.name


Target = Definition | External
