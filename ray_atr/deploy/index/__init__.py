"""An archive of sounds as an index: built and brought up to date from files, and asked by text or by sound."""
