"""Data is made and judged here: importing, checks, translation, languages, the synthetic set, the audit."""
