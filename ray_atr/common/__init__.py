"""What every part of the package stands on: settings, files, processes. Nothing here knows of sound or text."""
