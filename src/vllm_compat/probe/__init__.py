"""How a symbol of a package is called, read from its source; ``live`` reads the live object."""

from .finding import Finding, first_found
from .signature import Parameter, Signature
from .source import SourceTree

__all__ = ["Finding", "Parameter", "Signature", "SourceTree", "first_found"]
