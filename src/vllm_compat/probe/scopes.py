"""The statements of a module or a class body which bind a given name.

Parsing a whole file of the probed package takes tens of milliseconds, so the text is cut into
statements first, and only those which can bind the wanted name are parsed.

Why the cut is sound: a logical line at the body's own indentation starts a statement, unless it
lies in a string, in brackets or after a backslash. Triple-quoted strings are found exactly; a
line that may be inside brackets or continued makes the reader parse the whole file. A prefix
which parses on its own and is followed by such a start is a complete statement: what comes
behind belongs to another one (`else` and its like, which do not, are never taken for starts).
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from codecs import BOM_UTF8
from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    Scope: TypeAlias = "TextScope | NodeScope"

_TOKEN = re.compile(
    r"#[^\n]*|(?P<triple>\"\"\"|''')|\"(?:\\.|[^\"\\\n])*\"?|'(?:\\.|[^'\\\n])*'?", re.DOTALL
)
_DEFINITION = re.compile(r"[ \t]*(?:async[ \t]+)?(def|class)[ \t]+(\w+)")
_FIELD = re.compile(r"[ \t]*(?!try\b)[^\W\d]\w*[ \t]*[:=]")
_HEADER_END = re.compile(r":[ \t]*(?:#[^\n]*)?\n")
_OPEN = (*",([{+-*/%|&^<>=~", " and", " or", " not", " in", " is", " if", " else")
# The start of a statement's line; the group that matched tells what statement it is. Most lines
# are none, so what these begin with is asked first.
_START = (
    r"\nINDENT(?=[^\s#)\]}])"
    r"(?:(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)|(@)|((?:else|elif|except|finally)\b)|)"
)
_DEFINED, _DECORATOR, _CONTINUED = 1, 2, 3
_STARTS: dict[str, re.Pattern[str]] = {}

# Below these sizes parsing everything is cheaper than cutting first.
_SMALL_FUNCTION = 500
_SMALL_CLASS = 2500
_MAX_TRIES = 40
_MAX_FAILURES = 1000  # in one file, which then is no Python in more than a place or two
_FIELDS = ""  # no name: stands for all fields

PARSE_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)


class DoubtError(Exception):
    """The cheap reading cannot tell: the file must be parsed as a whole."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.source = source


class Source:
    """The text of one file, with the scope of its module-level statements."""

    def __init__(self, data: bytes, note: Callable[[str], None]) -> None:
        # The newline in front makes every line start with one, which searches fastest, and
        # makes the number of newlines up to a place its line number.
        self.text = f"\n{_decode(data)}\n"
        self._note = note
        self.scope: Scope = TextScope(self, 0, len(self.text), "")
        self.failures = 0
        self._parsed = False
        self._strings: list[tuple[int, int]] | None = None

    def parse_whole(self) -> None:
        """Replace the cheap reading by a parse of the whole file, if it does parse."""
        self._parsed = True
        try:
            tree = ast.parse(self.text[1:])
        except PARSE_ERRORS:
            return
        self.scope = NodeScope(tree.body)

    def doubt(self) -> None:
        """Ask for a whole parse, unless that has failed already."""
        if not self._parsed:
            raise DoubtError(self)

    def unreadable(self, position: int) -> None:
        """Ask for a whole parse; if that failed too, only note what was passed over."""
        self.doubt()
        self._note(f"could not be read: the statement at line {self.line(position)}")

    def line(self, position: int) -> int:
        return self.text.count("\n", 0, position)

    def strings(self) -> list[tuple[int, int]]:
        """Where the triple-quoted strings start and end; only they can hide whole lines."""
        if self._strings is None:
            self._strings = _triple_quoted(self.text)
        return self._strings


class NodeScope:
    """A body that was parsed in full."""

    def __init__(self, body: list[ast.stmt]) -> None:
        self._body = body

    def binders(self, name: str) -> list[ast.stmt]:  # noqa: ARG002 - all, whichever name
        """The statements among which those that bind ``name`` are."""
        return self._body

    def fields(self) -> list[ast.stmt]:
        """The annotated names and plain assignments."""
        return [node for node in self._body if isinstance(node, ast.AnnAssign | ast.Assign)]

    def unread(self, name: str) -> bool:  # noqa: ARG002 - nothing is, whichever name
        """Whether statements that could not be read may bind ``name``."""
        return False

    def unread_fields(self) -> bool:
        """Whether there are fields that could not be read."""
        return False

    def body_of(self, node: ast.ClassDef) -> Scope:
        return NodeScope(node.body)


class TextScope:
    """A body of which nothing is parsed before it is asked for."""

    def __init__(self, source: Source, start: int, end: int, indent: str) -> None:
        self._source = source
        self._start = start
        self._end = end
        self._indent = indent
        # Where the statements start, and where they do so behind their decorators.
        self._starts: list[int] = []
        self._heads: list[int] = []
        # The definitions by name, and where runs of other statements start and end: a definition
        # binds its name only, so that names are searched for in the others alone.
        self._defined: dict[str, list[int]] = {}
        self._others: list[tuple[int, int]] = []
        self._stars: set[int] = set()
        self._bodies: list[tuple[ast.ClassDef, TextScope]] = []
        self._parsed: dict[int, list[ast.stmt]] = {}
        self._binders: dict[str, list[ast.stmt]] = {}
        self._fields: list[ast.stmt] | None = None
        self._unread: set[str] = set()

    def binders(self, name: str) -> list[ast.stmt]:
        """The statements that may bind ``name``, in order; of large ones only the header."""
        if name in self._binders:
            return self._binders[name]
        self._cut()
        own = {*self._defined.get(name, ()), *self._mentioning(name)}
        found: list[ast.stmt] = []
        for index in sorted(own | self._stars):
            nodes = self._parse(index)
            if not nodes and index in own:
                self._unread.add(name)
            found += nodes
        if all(self._parsed.values()):  # else each probe is to have the notes of its own
            self._binders[name] = found
        return found

    def unread(self, name: str) -> bool:
        """Whether statements that could not be read may bind ``name``, in place of the others."""
        self.binders(name)
        return name in self._unread

    def unread_fields(self) -> bool:
        """Whether there are fields that could not be read."""
        self.fields()
        return _FIELDS in self._unread

    def fields(self) -> list[ast.stmt]:
        """The annotated names and plain assignments."""
        if self._fields is None:
            self._fields = self._read_fields()
        return self._fields

    def _read_fields(self) -> list[ast.stmt]:
        text = self._source.text
        self._cut()
        indexes = [i for i, start in enumerate(self._starts) if _FIELD.match(text, start)]
        code = "".join(text[self._starts[i] : self._end_of(i)] for i in indexes)
        try:
            nodes = self._nodes(code)
        except PARSE_ERRORS:
            parsed = [self._parse(index) for index in indexes]
            if not all(parsed):
                self._unread.add(_FIELDS)
            nodes = [node for statements in parsed for node in statements]
        return [node for node in nodes if isinstance(node, ast.AnnAssign | ast.Assign)]

    def body_of(self, node: ast.ClassDef) -> Scope:
        for known, body in self._bodies:
            if known is node:
                return body
        return NodeScope(node.body)

    def _cut(self) -> None:
        """Find the statements, once."""
        if self._starts:
            return
        text, indent = self._source.text, self._indent
        if indent not in _STARTS:
            _STARTS[indent] = re.compile(_START.replace("INDENT", indent))
        hidden = iter(self._source.strings())
        string, string_end = next(hidden, (len(text), 0))
        starts: list[int] = []
        heads: list[int] = []
        defined: dict[str, list[int]] = {}
        others: list[tuple[int, int]] = []
        decorators, other = 0, -1  # where those above a definition and a run of others start
        for match in _STARTS[indent].finditer(text, self._start, self._end):
            head, kind = match.start() + 1, match.lastindex
            while string_end and string_end <= head:
                string, string_end = next(hidden, (len(text), 0))
            if string < head or kind == _CONTINUED:
                continue
            if text[head - 2] == "\\":
                self._source.doubt()
            if kind == _DECORATOR:
                decorators = decorators or head
                continue
            start = decorators or head
            decorators = 0
            if kind == _DEFINED:
                defined.setdefault(match[_DEFINED], []).append(len(starts))
                if other >= 0:
                    others.append((other, start))
                    other = -1
            elif other < 0:
                other = start
            starts.append(start)
            heads.append(head)
        if other >= 0:
            others.append((other, self._end))
        self._starts, self._heads, self._defined, self._others = starts, heads, defined, others
        if not indent:
            self._stars = set(self._mentioning("*", "import "))

    def _end_of(self, index: int) -> int:
        return self._starts[index + 1] if index + 1 < len(self._starts) else self._end

    def _mentioning(self, name: str, before: str = "") -> Iterator[int]:
        """The indexes of the other statements with ``name`` in a place that can bind it."""
        text = self._source.text
        wanted = before + name
        for start, end in self._others:
            position = start
            while (place := text.find(wanted, position, end)) >= 0:
                position = place + len(wanted)
                if before or _is_whole_word(text, place, position):
                    index = bisect_right(self._starts, place) - 1
                    self._check_start(index)
                    yield index
                    position = self._end_of(index)

    def _check_end(self, index: int) -> None:
        """What follows a class must be a statement, or the class would be cut short."""
        if index + 1 < len(self._starts) and not _DEFINITION.match(
            self._source.text, self._heads[index + 1]
        ):
            self._check_start(index + 1)

    def _check_start(self, index: int) -> None:
        """`name = value` on a line of its own may also be an argument of a call around it."""
        text = self._source.text
        end, line = self._starts[index], ""
        while end > self._start and not line:
            begin = text.rfind("\n", 0, end - 1) + 1
            line = text[begin:end].strip()
            line = "" if line.startswith("#") else line
            end = begin
        line = line.removesuffix("import *")
        if any(code.endswith(_OPEN) for code in (line, line.rsplit("#", 1)[0].rstrip())):
            self._source.doubt()

    def _parse(self, index: int) -> list[ast.stmt]:
        """The nodes of one statement; none, with a note, if it cannot be read."""
        if index not in self._parsed:
            self._parsed[index] = self._read(index)
        elif not self._parsed[index]:
            self._source.unreadable(self._heads[index])  # each probe has notes of its own
        return self._parsed[index]

    def _read(self, index: int) -> list[ast.stmt]:
        text = self._source.text
        start, head, end = self._starts[index], self._heads[index], self._end_of(index)
        definition = _DEFINITION.match(text, head)
        kind = definition[1] if definition else ""
        if kind == "class":
            self._check_end(index)
        limit = {"def": _SMALL_FUNCTION, "class": _SMALL_CLASS}.get(kind, end)
        if end - head > limit and (nodes := self._parse_header(start, head, end)):
            return nodes
        # A definition ends where the next statement starts, other text may have been cut early.
        tries = 1 if kind or self._source.failures > _MAX_FAILURES else _MAX_TRIES
        for last in range(index, min(index + tries, len(self._starts))):
            try:
                return self._nodes(text[start : self._end_of(last)], start)
            except PARSE_ERRORS:  # noqa: PERF203 - each attempt may fail
                self._source.failures += 1
        if kind and (nodes := self._parse_header(start, head, end)):
            return nodes
        self._source.unreadable(head)
        return []

    def _parse_header(self, start: int, head: int, end: int) -> list[ast.stmt]:
        """The definition with `pass` for a body, or nothing if no header can be made out.

        The first line end behind a colon up to which the text parses ends the header: an
        earlier one is inside brackets or a string, which are then still open.
        """
        text = self._source.text
        for match in islice(_HEADER_END.finditer(text, head, end), _MAX_TRIES):
            try:
                nodes = self._nodes(f"{text[start : match.end()]}{self._indent} pass\n", start)
            except PARSE_ERRORS:
                continue
            if isinstance(nodes[-1], ast.ClassDef):
                # The body begins with the newline which ends the header.
                begin = match.end() - 1
                indent = _indent_behind(text, begin, end)
                if len(indent) <= len(self._indent):
                    return []
                self._bodies.append((nodes[-1], TextScope(self._source, begin, end, indent)))
            return nodes
        return []

    def _nodes(self, code: str, start: int | None = None) -> list[ast.stmt]:
        """Parse statements of this scope; ``start`` gives them their line numbers."""
        above = self._source.line(start) - 1 if start is not None else 1
        if not self._indent:
            return ast.parse("\n" * above + code).body
        wrapper = ast.parse("\n" * (above - 1) + "class _:\n" + code).body
        # Anything dedented would escape the wrapper: then this was no statement of the body.
        if len(wrapper) != 1 or not isinstance(wrapper[0], ast.ClassDef):
            raise SyntaxError("not one body")
        return wrapper[0].body


def _is_whole_word(text: str, start: int, end: int) -> bool:
    """Also not right behind a dot or a quote, where a name is never bound."""
    before, after = text[start - 1], text[end]
    return not (before in "._\"'" or before.isalnum() or after == "_" or after.isalnum())


def _indent_behind(text: str, newline: int, end: int) -> str:
    """The indentation of the first line of code behind ``newline``."""
    while 0 <= newline < end - 1:
        begin, newline = newline + 1, text.find("\n", newline + 1)
        line = text[begin:newline]
        code = line.lstrip()
        if code and not code.startswith("#"):
            return line[: len(line) - len(code)]
    return ""


def _triple_quoted(text: str) -> list[tuple[int, int]]:
    spans = []
    position = 0
    double, single = text.find('"""'), text.find("'''")
    while double >= 0 or single >= 0:
        start = double if single < 0 or 0 <= double < single else single
        begin = max(position, text.rfind("\n", 0, start))
        if text[begin:start].strip():
            # Quotes in a comment or a short string, which end with the line, do not count.
            token = _TOKEN.search(text, begin)
            while token and not token["triple"] and token.end() <= start:
                token = _TOKEN.search(text, token.end())
            assert token is not None
            start = token.start() if token["triple"] else -1
            position = token.end()
        if start >= 0:
            quotes = text[start : start + 3]
            end = text.find(quotes, start + 3)
            while end >= 0 and _is_escaped(text, end):
                end = text.find(quotes, end + 1)
            position = end + 3 if end >= 0 else len(text)
            spans.append((start, position))
        if 0 <= double < position:
            double = text.find('"""', position)
        if 0 <= single < position:
            single = text.find("'''", position)
    return spans


def _is_escaped(text: str, position: int) -> bool:
    backslashes = 0
    while text[position - 1 - backslashes] == "\\":
        backslashes += 1
    return backslashes % 2 == 1


def _decode(data: bytes) -> str:
    """The text as Python reads it. Raises UnicodeError, LookupError or SyntaxError."""
    if b"coding" in b"".join(data.split(b"\n", 2)[:2]):
        # Few files say so, and tokenize takes its time to import.
        from tokenize import detect_encoding

        text = data.decode(detect_encoding(iter(data.splitlines(keepends=True)).__next__)[0])
    else:
        text = data.removeprefix(BOM_UTF8).decode()
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    # A form feed is legal in front of a statement and counts for nothing.
    return text.replace("\f", "") if "\f" in text else text
