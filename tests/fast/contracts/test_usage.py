"""What a made-up package takes from vLLM."""

from __future__ import annotations

from textwrap import dedent

from vllm_compat.contracts import Use, uses


def package(folder, **files):
    for name, text in files.items():
        path = folder / f"{name.replace('___', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return uses(str(folder), "mine")


def test_imports_calls_and_subclasses(tmp_path) -> None:
    found = package(
        tmp_path,
        a="""
        from __future__ import annotations
        import vllm, vllm.config as settings, vllm_ascend
        from vllm.v1.request import Request as Wanted, RequestStatus
        from .vllm import other
        from vllmx import nothing

        class Mine(Wanted, vllm.LLM, list):
            pass

        def f(*args, **more):
            from vllm.utils import hashing
            hashing.hash_it(1, *args, n=2)
            settings.CacheConfig(block_size=16, **more)
            Wanted(1, 2, request_id=3)
            return vllm.sampling_params.SamplingParams()
        """,
        sub___b="""
        import vllm.config
        cache = vllm.config.CacheConfig(16)
        vllm.LLM("m")
        """,
    )
    assert found == (
        Use("call", "vllm.config:CacheConfig", "mine.a", 14, 0, ("block_size",), True),
        Use("call", "vllm.config:CacheConfig", "mine.sub.b", 3, 1),
        Use("call", "vllm.utils:hashing.hash_it", "mine.a", 13, 1, ("n",), True),
        Use("call", "vllm.v1.request:Request", "mine.a", 15, 2, ("request_id",), False),
        Use("call", "vllm:LLM", "mine.sub.b", 4, 1),
        Use("call", "vllm:sampling_params.SamplingParams", "mine.a", 16),
        Use("import", "vllm", "mine.a", 3),
        Use("import", "vllm.config", "mine.a", 3),
        Use("import", "vllm.config", "mine.sub.b", 2),
        Use("import", "vllm.utils:hashing", "mine.a", 12),
        Use("import", "vllm.v1.request:Request", "mine.a", 4),
        Use("import", "vllm.v1.request:RequestStatus", "mine.a", 4),
        Use("subclass", "vllm.v1.request:Request", "mine.a", 8),
        Use("subclass", "vllm:LLM", "mine.a", 8),
    )


def test_what_only_type_checkers_see_is_left_out(tmp_path) -> None:
    found = package(
        tmp_path,
        a="""
        import typing
        if typing.TYPE_CHECKING:
            from vllm import LLM
        else:
            from vllm import SamplingParams
        """,
        b="import vllm, this is no Python",
        __init__="from vllm import envs",
    )
    assert [(use.symbol, use.module) for use in found] == [
        ("vllm:SamplingParams", "mine.a"),
        ("vllm:envs", "mine"),
    ]
