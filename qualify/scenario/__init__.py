"""Scenarios: one workload, as written in `scenarios/*.yaml`."""

from qualify.scenario.arrival import Arrival as Arrival
from qualify.scenario.model import Sampling as Sampling
from qualify.scenario.model import Scenario as Scenario
from qualify.scenario.phase import After as After
from qualify.scenario.phase import Asked as Asked
from qualify.scenario.phase import Phase as Phase
from qualify.scenario.phase import Prefix as Prefix
from qualify.scenario.phase import RequestGroup as RequestGroup
from qualify.scenario.values import Known as Known
from qualify.scenario.values import Name as Name
from qualify.scenario.values import Offset as Offset
from qualify.scenario.values import Profile as Profile
from qualify.scenario.values import Seconds as Seconds
from qualify.scenario.values import Spread as Spread
from qualify.scenario.values import Tokens as Tokens
