"""Search indexes of sound archives: built and updated from files, queried by text or by sound."""
