"""A package ``vllm`` made from a contract: the recorded names and signatures, and nothing behind.

Good enough to import speculators on it and to drive it as far as a model would be needed: Python
itself then checks every call against the signature that the release has. Its module ``vllm._stub``
keeps what was called, and lets a test say what is answered.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

from vllm_compat.contracts.table import Contract
from vllm_compat.probe import Finding, Signature

SUPPORT = '''"""What was called, and what is answered."""

calls = []  # (symbol, arguments), in order
answers = {}  # symbol -> function of its arguments; without one the answer is a Recording


def called(symbol, arguments):
    arguments.pop("self", None)
    calls.append((symbol, arguments))
    return answers[symbol](arguments) if symbol in answers else Recording(f"{symbol}()")


class Recording:
    """Takes part in anything that does not ask for a number."""

    def __init__(self, symbol):
        self._symbol = symbol

    def __getattr__(self, name):
        return attribute(self._symbol, name)

    def __call__(self, *args, **kwargs):
        return called(self._symbol, {"args": args, **kwargs})

    def __iter__(self):
        return iter(())


def attribute(symbol, name, absent=()):
    if name.startswith("__") or name in absent:
        raise AttributeError(f"{symbol} has no {name}")
    return Recording(f"{symbol}.{name}")


class Meta(type):
    def __getattr__(cls, name):
        return attribute(cls.symbol, name, cls.absent)


class Class(metaclass=Meta):
    """Keeps the arguments of its constructor as attributes; has any other name but the absent."""

    symbol, absent = "", ()

    def __init__(self, *args, **kwargs):
        self.keep({"args": args, **kwargs})

    def keep(self, arguments):
        arguments.pop("self", None)
        vars(self).update(arguments)
        calls.append((self.symbol, arguments))

    def __getattr__(self, name):
        return attribute(self.symbol, name, self.absent)
'''


def generate(contract: Contract, folder: str | os.PathLike[str]) -> Path:
    """Write the package into ``folder`` and return its directory."""
    root = Path(folder) / "vllm"
    texts = {
        module: [line for name, found in names.items() for line in _definition(module, name, found)]
        for module, names in _by_module(contract).items()
    }
    for module in list(texts):
        while module := module.rpartition(".")[0]:
            texts.setdefault(module, [])
    for module, lines in texts.items():
        # Each a package: which have submodules need not be known.
        file = root.joinpath(*module.split(".")[1:]) / "__init__.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(["from vllm import _stub", "", *lines, ""] if lines else []))
    (root / "_stub.py").write_text(SUPPORT)
    (root / "_version.py").write_text(f"__version__ = version = {contract.release!r}\n")
    return root


def _by_module(contract: Contract) -> dict[str, dict[str, dict[str, Finding]]]:
    """Module -> top-level name -> the findings of it ("") and of its members."""
    found: dict[str, dict[str, dict[str, Finding]]] = defaultdict(lambda: defaultdict(dict))
    for symbol, finding in sorted(contract.findings.items()):
        module, _, path = symbol.partition(":")
        name, _, member = path.partition(".")
        if finding.kind == "module":
            found[f"{module}.{path}" if path else module].update()  # it is there, if empty
        elif finding.status == "found" or (member and f"{module}:{name}" in contract.findings):
            found[module][name][member] = finding
    return found


def _definition(module: str, name: str, members: dict[str, Finding]) -> list[str]:
    symbol = f"{module}:{name}"
    own = members.get("")
    if own is not None and own.kind == "function":
        return _function(symbol, name, own.signature, "")
    if own is not None and own.kind != "class":
        return [f"{name} = _stub.Recording({symbol!r})", ""]
    absent = tuple(m for m, finding in members.items() if m and finding.status == "absent")
    lines = [f"class {name}(_stub.Class):", f"    symbol, absent = {symbol!r}, {absent!r}", ""]
    if own is not None and own.signature is not None:
        lines += [
            f"    def __init__{_with_self(own.signature)}:",
            "        self.keep(locals())",
            "",
        ]
    for member, finding in members.items():
        if member and finding.signature is not None:
            lines += _function(f"{symbol}.{member}", member, finding.signature, "    ")
        elif member and finding.kind == "value":
            lines += [f"    {member} = _stub.Recording({f'{symbol}.{member}'!r})", ""]
    return lines


def _function(symbol: str, name: str, signature: Signature | None, indent: str) -> list[str]:
    if signature is None:
        shown = "(*args, **kwargs)"
    else:
        shown = _with_self(signature) if indent else str(signature)
    return [
        f"{indent}def {name}{shown}:",
        f"{indent}    return _stub.called({symbol!r}, locals())",
        "",
    ]


def _with_self(signature: Signature) -> str:
    # A signature's text is Python, with `...` for every default.
    shown = str(signature)
    return "(self)" if shown == "()" else f"(self, {shown[1:]}"
