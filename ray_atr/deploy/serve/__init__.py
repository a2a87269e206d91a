"""An HTTP server of an index: one ASGI app with a page, for a laptop or Ray Serve."""
