"""The pure parts of agent selection (§9 of the contract): who may be picked, in what order, what a model's answer says.

Three stages, each of which can only make the pick better: the shortlist narrows, the rerank reorders, the choice picks.
None of them can drop a query; what an outside service got wrong is a cause in a stage's report, never an error.
"""
