"""An index behind HTTP: one ASGI app with a page, for a laptop or under Ray Serve."""
