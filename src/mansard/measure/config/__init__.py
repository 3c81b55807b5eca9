"""Configuration files of microbenchmarks: strict YAML, sweeps, presets, and the plan that comes of them."""

from mansard.measure.config.plan import Plan as Plan
from mansard.measure.config.plan import WaivedPoint as WaivedPoint
from mansard.measure.config.plan import load_plan as load_plan
from mansard.measure.config.plan import plan_from_command_line as plan_from_command_line
from mansard.measure.config.schema import json_schema as json_schema
