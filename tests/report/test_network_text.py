"""The ranks and links of a job as text: both rates with their size, the slow rank by name, else the slow link."""

from mansard.report.network_text import network_lines

FAST, SLOW = 142e6, 12.5e6


def matrix(rates, size=4.0 * 2**20):
    rows = [{"source": a, "target": b, "bytes_per_s": v} for (a, b), v in rates.items()]
    return {
        "state": "done", "verdict": "low", "metrics": {"size_bytes": size, "operation": "device_to_device"},
        "audit": {"benchmark": {"matrix": rows, "matrix_means": "one direction"}},
    }  # fmt: skip


def pairs(ranks, slow):
    return {(a, b): SLOW if slow(a, b) else FAST for a in range(ranks) for b in range(ranks) if a != b}


def said(rates, word):
    return [line.strip() for line in network_lines([matrix(rates)]) if word in line]


def test_of_three_ranks_the_slow_one_is_named_although_most_pairs_are_its():
    rates = pairs(3, lambda a, b: 2 in (a, b))
    # Four of the six pairs are slow, so that their median is too: 12.5 of 142 MB/s is 0.09.
    assert said(rates, "slow rank") == [
        "slow rank: 2 sends at 12.5 MB/s at best, 0.09 of the median rank",
        "slow rank: 2 receives at 12.5 MB/s at best, 0.09 of the median rank",
    ]
    assert said(rates, "slow link") == []
    assert said(rates, "no link") == ["no link of the other ranks is below 70 % of the median pair, 142 MB/s"]


def test_a_rank_that_is_held_in_sending_alone():
    rates = pairs(4, lambda a, b: a == 2)
    assert said(rates, "slow rank") == ["slow rank: 2 sends at 12.5 MB/s at best, 0.09 of the median rank"]
    assert said(rates, "slow link") == []


def test_one_slow_link_is_no_slow_rank():
    rates = pairs(4, lambda a, b: (a, b) == (1, 3))
    assert said(rates, "slow rank") == []
    assert said(rates, "slow link") == ["slow link: 1 to 3 at 12.5 MB/s, 0.09 of the median pair"]
    # Two nodes of two: what goes over the network is slower, which is the network and no rank's fault.
    assert said(pairs(4, lambda a, b: a // 2 != b // 2), "slow rank") == []
    # Of two ranks neither can be told from the other; the direction can.
    assert said(pairs(2, lambda a, b: a == 1), "slow") == ["slow link: 1 to 0 at 12.5 MB/s, 0.16 of the median pair"]


def test_both_rates_stand_beside_the_size():
    def collective(size):
        return {
            "state": "done", "verdict": "low", "audit": {"benchmark": {"rank_s": [1e-3, 1e-3, 2e-3]}},
            "metrics": {"operation": "all_reduce", "participants": 3, "size_bytes": size, "median_s": 1e-3,
                        "algbw_bytes_per_s": size / 1e-3, "busbw_bytes_per_s": size / 1e-3 * 4 / 3},
        }  # fmt: skip

    lines = network_lines([collective(6e6), collective(3e6)])
    assert lines[2].split() == ["operation", "ranks", "S", "time", "algbw", "busbw"]
    # 3 MB in 1 ms: 3 GB/s, times 2 x 2/3.
    assert lines[3].split() == ["all_reduce", "3", "3.00", "MB", "1.00", "ms", "3.00", "GB/s", "4.00", "GB/s"]
    assert lines[4].split()[2] == "6.00"
    assert "  straggler: rank 2, 2.00 times the median rank" in lines
    assert network_lines([]) == []
