"""The package version; ``setup.py`` reads it without importing the package."""

__version__ = "0.3.0"
