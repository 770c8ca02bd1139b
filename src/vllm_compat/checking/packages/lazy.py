"""Whether a module's own ``__getattr__`` surely does not know a name."""

from __future__ import annotations

import ast


def refuses(module: ast.Module, name: str) -> bool:
    """Whether it only looks into tables written out in ``module``, without ``name``, and raises.

    False wherever that cannot be read off.
    """
    nodes = list(ast.walk(module))
    tables = {}
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                tables[ast.unparse(target)] = node.value
    functions = [
        node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == "__getattr__"
    ]
    mentioned = any(isinstance(node, ast.Constant) and node.value == name for node in nodes)
    return bool(functions) and not mentioned and all(_is_closed(f, tables) for f in functions)


def _is_closed(function: ast.FunctionDef, tables: dict[str, ast.expr]) -> bool:
    *above, last = function.body
    if isinstance(last, ast.If) and last.orelse:
        above.append(ast.If(last.test, last.body, []))
        last = last.orelse[-1]
    if not isinstance(last, ast.Raise) or "AttributeError" not in ast.unparse(last):
        return False
    for node in above:
        if isinstance(node, ast.If):
            if node.orelse or not _asks_a_table(node.test, tables):
                return False
        elif not isinstance(node, ast.Expr | ast.Import | ast.ImportFrom | ast.Global):
            return False
    return True


def _asks_a_table(test: ast.expr, tables: dict[str, ast.expr]) -> bool:
    """Whether a test is ``name == "..."`` or ``name in TABLE``, of texts written out here."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return False
    against = test.comparators[0]
    if isinstance(test.ops[0], ast.Eq):
        return isinstance(against, ast.Constant)
    if not isinstance(test.ops[0], ast.In):
        return False
    against = tables.get(ast.unparse(against), against)
    if isinstance(against, ast.Dict):
        return all(isinstance(key, ast.Constant) for key in against.keys)
    if isinstance(against, ast.List | ast.Tuple | ast.Set):
        return all(isinstance(element, ast.Constant) for element in against.elts)
    return False
