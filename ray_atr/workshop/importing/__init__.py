"""From data sets as people have them to shards: the plan of an import, its sources, checks and translations."""
