"""Run a program under torch's dispatch-level FLOP counter and print the total as JSON.

FlopCounterMode counts 0 for CPU attention and for grouped products; both are added here. It counts a causal attention
as the full square, and the flash backward as five products.

Standard input is a JSON list of [FOLDER, [PROGRAM, ARGS...]] or [FOLDER, ["-m", MODULE, ARGS...]]; the last line of
standard output is a JSON list of FLOP.
"""

import json
import math
import runpy
import sys
from typing import Any


def grouped_flop(a: Any, b: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Return the FLOP of torch._grouped_mm: (rows x k)(groups, k, n), or (m x rows)(rows x n) split along the rows."""
    return 2 * math.prod(a) * b[-1]


def main() -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

    aten = torch.ops.aten
    counted = {
        aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
        aten._scaled_dot_product_flash_attention_for_cpu_backward: (
            lambda g, q, k, v, *_, **__: sdpa_backward_flop_count(g, q, k, v)
        ),
        aten._grouped_mm: grouped_flop,
    }
    totals = []
    for folder, command in json.load(sys.stdin):
        sys.path[0] = folder
        with FlopCounterMode(display=False, custom_mapping=counted) as counter:
            if command[0] == "-m":
                sys.argv = command[1:]
                runpy.run_module(command[1], run_name="__main__", alter_sys=True)
            else:
                sys.argv = command
                runpy.run_path(f"{folder}/{command[0]}", run_name="__main__")
        totals.append(counter.get_total_flops())
    print(json.dumps(totals))


if __name__ == "__main__":
    main()
