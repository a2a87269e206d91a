"""An index behind HTTP: one ASGI app with a page."""
