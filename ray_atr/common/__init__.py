"""Shared by all parts of the package: settings, files, processes. Nothing in it depends on audio or text."""
