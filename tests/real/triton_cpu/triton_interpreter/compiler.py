"""The half that would compile; TRITON_INTERPRET=1 keeps every call away from it."""

from typing import NoReturn

from triton.backends.compiler import BaseBackend, GPUTarget


class InterpreterBackend(BaseBackend):
    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return bool(target.backend == "cpu")

    def hash(self) -> str:
        return "interpreter"

    def parse_options(self, *_args: object) -> NoReturn:
        _refuse()

    def add_stages(self, *_args: object) -> NoReturn:
        _refuse()

    def load_dialects(self, *_args: object) -> NoReturn:
        _refuse()

    def get_module_map(self) -> NoReturn:
        _refuse()


def _refuse() -> NoReturn:
    raise NotImplementedError("the interpreter compiles nothing; set TRITON_INTERPRET=1")
