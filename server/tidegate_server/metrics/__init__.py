"""Metrics: wrappers of the verbs and ports that count and time, and the page of text that shows them.

Nobody who is measured knows of it. On the way of a call there are plain numbers; families, names and labels are made
when somebody scrapes. No label holds the id of a worker, a session, a trace or a hop.
"""

from tidegate_server.metrics.exposition import CONTENT_TYPE, Exposition, Sources
from tidegate_server.metrics.measures import Measures
from tidegate_server.metrics.rates import Rates, Sample
from tidegate_server.metrics.stores import MeasuredAgents, MeasuredDecisions, MeasuredFacts, MeasuredFlows, MeasuredPins
from tidegate_server.metrics.verbs import MeasureAdmissions, MeasureSelections

__all__ = [
    "CONTENT_TYPE",
    "Exposition",
    "MeasureAdmissions",
    "MeasureSelections",
    "MeasuredAgents",
    "MeasuredDecisions",
    "MeasuredFacts",
    "MeasuredFlows",
    "MeasuredPins",
    "Measures",
    "Rates",
    "Sample",
    "Sources",
]
