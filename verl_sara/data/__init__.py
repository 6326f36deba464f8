"""Data sets in verl's row format: MATH, AIME24 and Countdown.

`rows` what a row must hold, `identity` the stable `prompt_id`, `countdown` problem generator and solver,
`sources` reading files and hub data sets, `prepare` raw rows to checked and deduplicated ones, `parquet`
writing with a schema check, `build` the three data sets with their sidecar file, `preflight` checks of the
rows a run is about to use.
"""
