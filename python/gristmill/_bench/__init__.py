"""`gristmill bench`: tokens a second, side by side with the pipelines that users have today.

`contenders` holds the pipelines, `run` gives one of them a process of its own and measures it, `rounds` runs
them all in paired rounds, `latency` measures delays, `machine` describes the machine, `report` and `chart` show
the results.
"""
