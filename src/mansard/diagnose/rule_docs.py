"""The page about the rules, made from their docstrings, so that what is documented is what the code says."""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import dataclass

from mansard.diagnose import rules
from mansard.diagnose.ranking import BLOCKS, EITHER, FIRST, GENERAL

#: Parts of a rule's docstring, in order.
PARTS = ("Needs", "Promises", "Source")

_HEAD = """# Rules

Advice comes from rules, one module each in `src/mansard/diagnose/rules/`. A rule looks at one run and speaks only where the evidence
it needs was recorded, measured or given; a low figure alone is no evidence. This page is made from their docstrings:

```sh
python -c "from mansard.diagnose.rule_docs import rules_page; print(rules_page(), end='')" > docs/rules.md
```

A gain is in seconds of one step, and at most: it is never above the headroom of what the advice is about, and the whole advice is
checked for that. What the headroom is depends on what would change:

| change | what it is | headroom |
|---|---|---|
| rate | the same work nearer to its ceiling | observed less least time of its operations; their time where no ceiling is known |
| work | less work, or done elsewhere or in another way | the time of its operations |
| wait | less waiting | the time of these waits in the account of the step |

Advice is ranked by gain, and what is below 2 % of the step is left out. Gains of advice about the same seconds do not add up; each
advice names the others (`overlaps`).

"""


#: What a rule may ask for beside operations, waits and ceilings, and the inputs that supply it: each field of `facts.Facts`.
FACT_SOURCES = {
    "points": "`detailed.json` of `mansard measure`",
    "workload": "a model's `config.json` with `--phase`; `real_tokens`, `cache_bytes` and the rest with `--facts`",
    "gaps": "Kineto and Nsight Systems files with runtime calls and steps",
    "clock": "`mansard run` without `--ceilings`, which probes before and after",
    "memory": "Kineto with `profile_memory=True`, Nsight Systems with `--cuda-memory-usage=true`; calls for memory: any file "
    "with runtime calls and steps",
    "ranks": "the profiles of several ranks",
    "transfers": "Kineto and Nsight Systems files with copies",
    "experts": "`--facts`: no file records routed tokens by rank",
    "offload": "`--facts` with the size of one piece; copies of that size, their rate and the wait for them come from the profile",
    "pipeline": "a profile with steps, and a model with `--pp` and its micro-batches",
    "grids": "Kineto and Nsight Systems files of NVIDIA devices whose multiprocessors the file describes",
    "node_devices": "`--node-devices`, or a product whose node is in the catalogue",
    "cores_busy": "`mansard run`",
    "blocked_s": "Kineto and Nsight Systems files with runtime calls and steps",
    "host_unseen": "Kineto and Nsight Systems files: few pieces of work, and next to nothing of the host",
    "foreign_load_ratio": "`mansard run` without `--ceilings`, which probes before and after",
}
_ASKS = re.compile(r"case\.facts\.([a-z_]+)")


def facts_asked(name: str) -> tuple[str, ...]:
    """Return which facts a rule asks for, as its code says.

    Args:
        name: The rule.

    >>> facts_asked("expert_imbalance")
    ('experts',)
    """
    module = importlib.import_module(f"{rules.__name__}.{name}")
    return tuple(sorted(set(_ASKS.findall(inspect.getsource(module)))))


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleText:
    """What the docstring of one rule says.

    Args:
        name: The rule.
        title: What is seen, in one sentence.
        needs, promises, source: As named there.
    """

    name: str
    title: str
    needs: str
    promises: str
    source: str


def rule_text(name: str) -> RuleText:
    """Return the parts of a rule's docstring.

    Raises:
        ValueError: A part is missing; a rule without its evidence, promise and source is not finished.
    """
    text = importlib.import_module(f"{rules.__name__}.{name}").__doc__ or ""
    title, _, body = text.strip().partition("\n\n")
    found: dict[str, list[str]] = {}
    part = ""
    for line in body.splitlines():
        head, colon, rest = line.partition(": ")
        if colon and head in PARTS:
            part, line = head, rest
        if part:
            found.setdefault(part, []).append(line.strip())
    missing = [p for p in PARTS if not found.get(p)]
    if missing or not title:
        raise ValueError(f"the docstring of the rule {name} lacks {', '.join(missing) or 'a title'}")
    needs, promises, source = (" ".join(found[p]) for p in PARTS)
    return RuleText(name=name, title=" ".join(title.split()), needs=needs, promises=promises, source=source)


def rules_page() -> str:
    """Return the page, in Markdown."""
    texts = [rule_text(name) for name in rules.rule_names()]
    table = [
        f"## {len(texts)} rules", "", "| rule | what is seen | evidence it needs | what it promises | source |", "|---|---|---|---|---|",
        *(f"| `{t.name}` | {' | '.join(_cell(c) for c in (t.title, t.needs, t.promises, t.source))} |" for t in texts),
    ]  # fmt: skip
    asked = {name: facts_asked(name) for name in rules.rule_names()}
    plain = ", ".join(f"`{name}`" for name, facts in asked.items() if not facts)
    supplied = [
        "", "## From which inputs a rule can speak", "",
        "Every rule needs operations with their times; one about a ceiling needs that as well: of the catalogue, or measured. "
        "Beside that:", "", "| rule | fact | supplied by |", "|---|---|---|",
        *(f"| `{name}` | `{fact}` | {FACT_SOURCES[fact]} |" for name, facts in asked.items() for fact in facts), "",
        f"From the operations, waits and ceilings of any profile or run alone: {plain}.",
    ]  # fmt: skip
    kept = [
        "", "## Which advice excludes which", "", "Where the first speaks the second does not, whatever it would save:", "",
        *(f"- `{a}` before `{b}`" for a, b in BLOCKS), "",
        "Two ways to save the same seconds; the larger gain stays and names the other (`instead_of`):", "",
        *(f"- `{a}` or `{b}`" for a, b in EITHER), "",
        f"{' and '.join(f'`{f}`' for f in FIRST)} comes before all others, whatever they promise.", "",
        f"{' and '.join(f'`{g}`' for g in GENERAL)} name operations without a cause. They give way where rules that know a cause of the "
        "same shortfall explain half of it.", "",
    ]  # fmt: skip
    return _HEAD + "\n".join([*table, *supplied, *kept])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
