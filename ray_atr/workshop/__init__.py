"""Making and checking data sets: import, checks, joins, translation, captions by template, synthetic soundscapes, audits."""
