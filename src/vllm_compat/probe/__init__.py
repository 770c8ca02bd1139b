"""How a symbol of a package is called: read from its source, or from the live object."""

from .finding import Finding
from .live import probe_live, signature_of
from .signature import Parameter, Signature
from .source import SourceTree

__all__ = ["Finding", "Parameter", "Signature", "SourceTree", "probe_live", "signature_of"]
