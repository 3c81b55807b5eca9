"""What does a compiled XLA program consume? Its optimised HLO text, parsed, and the demand of every instruction."""

from mansard.trace.hlo.cost import InstructionCost as InstructionCost
from mansard.trace.hlo.cost import ModuleCosts as ModuleCosts
from mansard.trace.hlo.text import Computation as Computation
from mansard.trace.hlo.text import Instruction as Instruction
from mansard.trace.hlo.text import Module as Module
from mansard.trace.hlo.text import parse_module as parse_module
