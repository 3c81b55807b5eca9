"""Every verb with bad input: one error that says what is wrong, the exit code of the design, nothing on stdout, no stack trace."""

from __future__ import annotations

import io
import json

import pytest

from mansard.cli.main import main

ON = ("--on", "h100-sxm")
NET = ("--network", "50 GB/s")
SHARD = ("plan", "shard", "llama-3.1-8b", *ON, "--batch", "64", "--seq", "4096")
DECODE = ("estimate", "llama-3.1-8b", *ON, "--context", "4096")

#: Words of the command line, the exit code, and what the error must name.
TABLE = [
    # names: a misspelt one gets the nearest
    (("estimte",), 2, "did you mean 'estimate'"),
    (("plan", "shrd"), 2, "did you mean 'shard'"),
    (("trace", "sumary", "x"), 2, "did you mean 'summary'"),
    (("hardware", "shw"), 2, "did you mean 'show'"),
    (("baseline", "lst"), 2, "did you mean 'list'"),
    (("version",), 2, "did you mean '--version'"),
    (("help",), 2, "did you mean '--help'"),
    (("plan", "help"), 2, "did you mean 'mansard plan --help'"),
    (("trace", "summary", "old", "--top", "x"), 2, "--top is 'x', expected a whole number"),
    (("measure", "--threads", "0"), 2, "--threads is 0, expected 1 or more"),
    (
        ("measure", "--suite", "quik"),
        2,
        "--suite is 'quik', expected one of quick, standard, full; did you mean quick?",
    ),
    (("plan", "shard", "gpt2"), 2, "--on is missing"),
    (("estimate",), 2, "MODEL is missing\n  hint: mansard estimate [OPTIONS] MODEL; mansard estimate --help says more"),
    (("trace", "summary", "a", "b"), 2, "got unexpected extra argument (b)"),
    (("flops", "atention"), 2, "one of attention"),
    (("validate", "--models", "lama"), 2, "one of llama"),
    (("estimate", "llama3.1-8b"), 2, "did you mean 'llama-3.1-8b'"),
    (("estimate", "gpt2", "--on", "h100-smx", "--context", "8"), 2, "h100-sxm"),
    (("estimate", "gpt2", "--on", "DGX H100", "--context", "8"), 2, "8 x h100-sxm"),
    (("doctor", "--jsn"), 2, "--json"),
    ((*DECODE, "--contxt", "8"), 2, "--context"),
    (("run", "--reprot", "x.html", "x.py"), 2, "did you mean --report"),
    # numbers: huge, none, negative, not whole
    ((*DECODE, "--batch", "1e30"), 2, "--batch"),
    ((*DECODE, "--batch", "9" * 40), 2, "batch is larger"),
    ((*DECODE, "--batch", "0"), 2, "batch is 0"),
    ((*DECODE, "--batch", "-1"), 2, "batch is -1"),
    ((*DECODE, "--batch", "nan"), 2, "--batch"),
    ((*DECODE, "--tp", "3"), 2, "cannot be divided over 3"),
    ((*DECODE, "--memory-fraction", "nan"), 2, "memory fraction is nan"),
    ((*DECODE, "--sweep", "batch=1,x"), 2, "batch=x"),
    ((*SHARD, *NET, "--devices", "0"), 2, "devices is 0"),
    ((*SHARD, *NET, "--devices", "1" + "0" * 23), 2, "at most 10,000,000"),
    (
        ("plan", "disaggregate", "gpt2", *ON, "--prompt", "9", "--output", "9", "--devices", "1" + "0" * 23),
        2,
        "at most",
    ),
    (("plan", "size", "--params", "1e400", "--dtype", "bf16", *ON), 2, "--params is 1e400"),
    (("plan", "remat", "gpt2", *ON, "--seq", "0"), 2, "seq is 0"),
    (("flops", "linear", "--seq-len", "0", "--hidden-dim", "4"), 2, "seq_len is 0"),
    (("measure", "--threads", "0"), 2, "--threads"),
    # units
    (("hardware", "peak", "h100-sxm", "--clock", "1.98"), 2, "has no unit"),
    (("hardware", "peak", "h100-sxm", "--clock", "1.98 parsec"), 2, "unknown unit 'parsec'"),
    (("hardware", "peak", "h100-sxm", "--clock", "-1 GHz"), 2, "not negative"),
    ((*SHARD, "--devices", "16", "--network", "400 Gbps"), 2, "ambiguous"),
    ((*SHARD, "--devices", "16", "--network", "400 Gbit"), 2, "expected a bandwidth"),
    ((*DECODE, "--measured-time", "5"), 2, "has no unit"),
    # given twice
    ((*DECODE, "--batch", "1", "--batch", "2"), 2, "--batch"),
    (("hardware", "peak", "--clock", "1 GHz", "--clock", "2 GHz"), 2, "given 2 times"),
    # files
    (("estimate", "no.json", *ON, "--context", "8"), 2, "no.json"),
    ((*DECODE, "-o", "."), 2, "is a directory"),
    ((*DECODE, "-o", "no/x.json"), 2, "no directory"),
    ((*DECODE, "-o", "old"), 2, "--force"),
    (("plan", "size", "gpt2", *ON, "--context", "8", "-o", "old"), 2, "--force"),
    (("report", "old", "-o", "old", "--force"), 2, "is an input itself"),
    (("export", "csv", "old", "-o", "old", "--force"), 2, "is an input itself"),
    (("diagnose", "old", "-o", "old", "--force"), 2, "is an input itself"),
    (("validate", "--runs", "old", "-o", "old"), 2, "--force"),
    (("run", "no.py"), 2, "no such program"),
    (("run", "--report", "x", "-o", "x", "old"), 2, "both name"),
    (("run", "--network-rate", "5 parsec", "old"), 2, "parsec"),
    (("report", "none"), 4, "none"),
    (("report", "old"), 4, "old"),
    (("diagnose", "none"), 4, "none"),
    (("diagnose", "old"), 4, "old"),
    (("trace", "summary", "none"), 4, "none"),
    (("trace", "kernels", "/dev/null"), 4, "is empty"),
    (("export", "csv", "old"), 4, "old"),
    (("compare", "none", "old"), 4, "none"),
    (("compare", "old"), 2, "two results"),
    (("validate", "--runs", "none"), 4, "none"),
    (("measure", "none.yaml"), 4, "none.yaml"),
    (("plan", "scale", "none"), 4, "none"),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "old").write_text("no document\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def called(capfd, args):
    with pytest.raises(SystemExit) as stopped:
        main(list(args))
    out, err = capfd.readouterr()
    return stopped.value.code or 0, out, err


@pytest.mark.parametrize(
    ("args", "code", "words"), TABLE, ids=lambda x: " ".join(x)[:60] if isinstance(x, tuple) else None
)
def test_bad_input_is_one_error(folder, capfd, args, code, words):
    got, out, err = called(capfd, args)
    assert (got, out) == (code, "")
    assert words in err
    assert "Traceback" not in err
    assert (err[:9], err.count("mansard: "), "Error" in err, "Usage" in err) == ("mansard: ", 1, False, False)
    assert code != 2 or "\n  hint: " in err  # a wrong line has a next step
    assert [p.name for p in folder.iterdir()] == ["old"]
    assert (folder / "old").read_text() == "no document\n"


@pytest.mark.parametrize("args", [t[0] for t in TABLE if t[0][0] != "run"][::6])
def test_the_same_is_one_document_with_json(folder, capfd, args):
    got, out, _ = called(capfd, [*args, "--json"])
    assert got in (2, 4)
    assert json.loads(out)["error"]["message"]


def test_names_that_look_like_options_and_hold_newlines_are_files(folder, capfd):
    (folder / "a b\nc").mkdir()
    config = folder / "a b\nc" / "-x.json"
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 256, "n_positions": 64}
    config.write_text(json.dumps({"model_type": "gpt2", "torch_dtype": "bfloat16", **sizes}))
    got, _, err = called(capfd, ["estimate", "./a b\nc/-x.json", *ON, "--context", "8", "-o", "./a b\nc/-o.json"])
    assert got == 0, err
    assert json.loads((folder / "a b\nc" / "-o.json").read_text())["schema"] == "estimate/1"


@pytest.mark.parametrize("columns", ["1", "20", "40", "x", "-5", "99999"])
def test_any_width_is_a_width(capfd, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TERM", "dumb")
    for args in (("hardware", "list"), ("plan", "size", "gpt2", *ON, "--context", "64"), ("--help",)):
        got, out, err = called(capfd, args)
        assert (got, err) == (0, "")
        assert out


def test_an_ascii_terminal_stops_nothing(monkeypatch):
    for args in (
        DECODE,
        (*SHARD, *NET, "--devices", "16"),
        ("hardware", "show", "mi250x"),
        ("plan", "scale", "--point", "1:8", "--point", "4:2", "--scaling", "strong"),
    ):
        raw = io.BytesIO()
        monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, "ascii"))
        with pytest.raises(SystemExit) as stopped:
            main(list(args))
        assert (stopped.value.code or 0) == 0
        assert raw.getvalue().decode("utf-8")  # click writes UTF-8 where it is told ASCII


def test_without_a_stdin_nothing_is_read_from_it(folder, capfd, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    got, _, err = called(capfd, ["report", "-", "-o", "x.html"])
    assert got == 4
    assert "stdin is closed" in err


def test_an_interrupt_is_one_line_and_leaves_nothing_half_written(folder, capfd, monkeypatch):
    def interrupted(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("mansard.predict.estimate.estimate", interrupted)
    got, out, err = called(capfd, (*DECODE, "-o", "new.json"))
    assert (got, out, err.strip()) == (130, "", "mansard: interrupted")
    assert [p.name for p in folder.iterdir()] == ["old"]
