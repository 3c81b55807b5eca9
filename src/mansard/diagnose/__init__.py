"""Which ceiling did the run hit, how far below it did it stay, why, and what should change?"""

from mansard.core.callable_package import make_callable
from mansard.diagnose.calls import diagnose as diagnose

make_callable(__name__, "diagnose")
