"""A Triton backend that compiles nothing: it lets vLLM use Triton's interpreter on a CPU.

vLLM turns Triton off unless a Triton backend is active, and Triton ships none for a CPU. With
this folder on PYTHONPATH, Triton finds this one through the entry point beside it, in every
process that a test starts, and ``TRITON_INTERPRET=1`` keeps Triton from ever compiling for it.
"""
