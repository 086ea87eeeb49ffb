"""The version of the package, for its metadata and for the driver's."""

__version__ = "0.1.0"
