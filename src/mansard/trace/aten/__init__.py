"""What each recorded PyTorch operator consumes, from the shapes, types, strides and values of its inputs."""

from mansard.trace.aten.call import AtenCall as AtenCall
from mansard.trace.aten.call import AtenCost as AtenCost
from mansard.trace.aten.table import cost as cost
from mansard.trace.aten.table import needs_inner as needs_inner
from mansard.trace.recorders.torch_lists import takes_lists as takes_lists
from mansard.trace.recorders.torch_lists import tensor_lists as tensor_lists
