"""The half that says that the backend is there."""

from typing import Any, NoReturn

from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase


class InterpreterDriver(DriverBase):
    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cpu", "interpreter", 1)

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def map_python_to_cpp_type(self, ty: str) -> NoReturn:
        raise NotImplementedError("the interpreter compiles nothing; set TRITON_INTERPRET=1")

    def get_benchmarker(self) -> NoReturn:
        raise NotImplementedError("timing interpreted kernels says nothing about real ones")
