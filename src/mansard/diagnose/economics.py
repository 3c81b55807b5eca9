"""What a step, a token and a run cost in money and energy, and whether a faster plan is also worth its devices.

Prices carry their offer and date, power says whether it was measured or is the vendor's limit. Neither is guessed: what is
not on record is `Unknown`. Between two plans on the same product the price cancels, so their costs compare without one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from mansard.core import Grade, Unknown, is_known
from mansard.core.errors import UsageError
from mansard.core.units import format_ratio
from mansard.hardware.records import Sku

SAME_COST = 0.02  # two costs or times that differ by less are called the same
_GIVEN = "given by the user"


def _positive(**numbers: float) -> None:
    for name, value in numbers.items():
        if not 0.0 < value < math.inf:
            raise UsageError(f"{name} is {value}, expected a positive number")


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePrice:
    """What one device costs.

    Args:
        usd_per_hour: Of one device [USD/h].
        offer: Whose offer.
        date: When it was read.
        source: Where.
        certainty: As in the catalogue: checked, reported, from memory; `given` by the user.
    """

    usd_per_hour: float
    offer: str
    date: str
    source: str
    certainty: str

    @property
    def usd_per_s(self) -> float:
        """Of one device [USD/s]."""
        return self.usd_per_hour / 3600.0

    def to_json(self) -> dict[str, Any]:
        """Return the receipt of the price."""
        return {
            "usd_per_hour": self.usd_per_hour, "offer": self.offer, "date": self.date, "source": self.source, "certainty": self.certainty,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePower:
    """Power that one device draws.

    Args:
        watt: [W].
        upper_bound: Whether it is the vendor's limit, so that energies are at most this much.
        source: Where it comes from.
        grade: Measured or declared.
    """

    watt: float
    upper_bound: bool
    source: str
    grade: Grade

    def to_json(self) -> dict[str, Any]:
        """Return the receipt of the power."""
        return {"watt": self.watt, "upper_bound": self.upper_bound, "source": self.source, "grade": self.grade.value}


def price_of(sku: Sku, *, offer: str | None = None) -> DevicePrice | Unknown:
    """Return what one device of a product costs, by the offer of the latest date.

    Args:
        sku: The product. Its prices are per package; a package of two devices shares its price between them.
        offer: Part of the offer's name, where another one is meant.

    Raises:
        UsageError: no offer has that name.
    """
    if not sku.prices:
        return Unknown(f"no price of {sku.name} with a source is on record", ("--usd-per-hour",))
    chosen = [p for p in sku.prices if offer is None or offer.lower() in p.offer.lower()]
    if not chosen:
        known = "; ".join(p.offer for p in sku.prices)
        raise UsageError(f"no offer for {sku.name} has {offer!r} in its name", hint=f"one of: {known}")
    latest = max(p.receipt.date for p in chosen)
    newest = [p for p in chosen if p.receipt.date == latest]
    if len({p.usd_per_hour for p in newest}) > 1:
        names = "; ".join(f"{p.offer} at {p.usd_per_hour} USD/h" for p in newest)
        return Unknown(f"{sku.name} has several offers of {latest}: {names}", ("--offer", "--usd-per-hour"))
    found = newest[0]
    return DevicePrice(
        usd_per_hour=found.usd_per_hour / sku.package.devices, offer=found.offer, date=found.receipt.date,
        source=found.receipt.source, certainty=found.receipt.certainty,
    )  # fmt: skip


def given_price(usd_per_hour: float, *, date: str = "", offer: str = _GIVEN) -> DevicePrice:
    """Return a price that the user states for one device [USD/h]."""
    _positive(usd_per_hour=usd_per_hour)
    return DevicePrice(usd_per_hour=usd_per_hour, offer=offer, date=date, source=_GIVEN, certainty="given")


def power_limit_of(sku: Sku) -> DevicePower | Unknown:
    """Return the most one device of a product draws for long: its thermal design power, an upper bound of the mean.

    Assumes: the devices of a package share its limit equally. What host, network and cooling draw is not in it.
    """
    if sku.tdp_w is None or sku.tdp_receipt is None:
        return Unknown(f"the power of {sku.name} is not on record", ("--watt", "measured power"))
    source = f"thermal design power, {sku.tdp_receipt.source}"
    return DevicePower(
        watt=sku.tdp_w / sku.package.devices, upper_bound=True, source=source, grade=Grade.DECLARED
    )  # fmt: skip


def measured_power(watt: float, *, source: str) -> DevicePower:
    """Return the mean power of one device as it was measured over the steps [W].

    Args:
        watt: Mean over time, not the highest sample.
        source: By what, such as `nvidia-smi, mean over 200 steps`.
    """
    _positive(watt=watt)
    return DevicePower(watt=watt, upper_bound=False, source=source, grade=Grade.MEASURED)


NO_PRICE = Unknown("no price was given", ("--hardware", "--usd-per-hour"))
NO_POWER = Unknown("no power was given", ("--hardware", "--watt"))
NO_TOKENS = Unknown("the tokens of a step are not known", ("--tokens",))
NO_STEPS = Unknown("the steps of the run are not known", ("--steps",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One way to run a step.

    Args:
        name: How it is called.
        step_s: Wall time of one step [s].
        devices: Devices that are paid for during it, the idle ones too.
        tokens_per_step: Tokens (or samples) of one step on all devices.
        product: What the devices are; plans of one product compare without a price.
        price: Of one device.
        power: Of one device.
    """

    name: str
    step_s: float
    devices: int
    tokens_per_step: float | Unknown = NO_TOKENS
    product: str = ""
    price: DevicePrice | Unknown = NO_PRICE
    power: DevicePower | Unknown = NO_POWER

    def __post_init__(self) -> None:
        _positive(step_s=self.step_s, devices=self.devices)
        if is_known(self.tokens_per_step):
            _positive(tokens_per_step=self.tokens_per_step)

    @property
    def device_s(self) -> float:
        """Device seconds of a step."""
        return self.devices * self.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Money and energy of a plan.

    Args:
        usd_per_step, usd_per_token, usd_per_run: [USD].
        joule_per_step, joule_per_token, joule_per_run: [J]; at most this much where `energy_is_upper_bound`.
        energy_is_upper_bound: Whether the power is a limit and no measurement.
        device_hours_per_run: [h].
        price, power: What was reckoned with.
    """

    usd_per_step: float | Unknown
    usd_per_token: float | Unknown
    usd_per_run: float | Unknown
    joule_per_step: float | Unknown
    joule_per_token: float | Unknown
    joule_per_run: float | Unknown
    energy_is_upper_bound: bool
    device_hours_per_run: float | Unknown
    price: DevicePrice | Unknown
    power: DevicePower | Unknown

    def to_json(self) -> dict[str, Any]:
        """Return the keys of `cost`."""
        return {name: getattr(self, name) for name in self.__slots__}


def cost_of(plan: Plan, *, steps: float | Unknown = NO_STEPS) -> Cost:
    """Return what a plan costs per step, per token and per run.

    Args:
        plan: Step time, devices, price, power.
        steps: Steps of the run.

    Formula: USD = devices x step time x price; J = devices x step time x power.

    8 devices, 1.8 s, 2 USD/h each, 100 000 tokens: 0.008 USD per step, 0.08 USD per million tokens.

    >>> c = cost_of(Plan(name="a", step_s=1.8, devices=8, tokens_per_step=1e5, price=given_price(2.0)), steps=1000.0)
    >>> round(c.usd_per_step, 9), round(c.usd_per_token * 1e6, 9), round(c.usd_per_run, 6)
    (0.008, 0.08, 8.0)
    """
    if is_known(steps):
        _positive(steps=steps)
    rate = plan.price if isinstance(plan.price, Unknown) else plan.price.usd_per_s
    watt = plan.power if isinstance(plan.power, Unknown) else plan.power.watt
    usd, joule = plan.device_s * rate, plan.device_s * watt
    return Cost(
        usd_per_step=usd, usd_per_token=usd / plan.tokens_per_step, usd_per_run=usd * steps, joule_per_step=joule,
        joule_per_token=joule / plan.tokens_per_step, joule_per_run=joule * steps,
        energy_is_upper_bound=not isinstance(plan.power, Unknown) and plan.power.upper_bound,
        device_hours_per_run=plan.device_s * steps / 3600.0, price=plan.price, power=plan.power,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Tradeoff:
    """A change judged by time and by cost.

    Args:
        speedup_ratio: Work per second after over before.
        device_ratio: Devices after over before.
        efficiency_ratio: speedup over device ratio: below 1 the added devices are not all used.
        cost_ratio: Cost of the same work after over before.
        break_even_speedup: Speed-up at which the cost would be the same.
        usd_per_hour_saved: Extra money for each hour of waiting that the change saves on the same work [USD/h]; `Unknown`
            where it saves none, or costs nothing more.
        verdict: In a few words.
        text: One sentence.
    """

    speedup_ratio: float
    device_ratio: float
    efficiency_ratio: float
    cost_ratio: float | Unknown
    break_even_speedup: float | Unknown
    usd_per_hour_saved: float | Unknown
    verdict: str
    text: str


def judge_change(before: Plan, after: Plan) -> Tradeoff:
    """Return what a change does to time and to cost, for the same work.

    Args:
        before, after: Two plans. Where both state their tokens they are compared per token, where neither does per step.

    Raises:
        UsageError: only one states its tokens, so that nothing says they do the same work.

    8 devices at 1 s against 16 at 0.6 s: 1.67 times as fast for 1.2 times the money.

    >>> t = judge_change(Plan(name="8", step_s=1.0, devices=8, product="h200"), Plan(name="16", step_s=0.6, devices=16, product="h200"))
    >>> round(t.speedup_ratio, 3), round(t.cost_ratio, 3), round(t.efficiency_ratio, 3), t.verdict
    (1.667, 1.2, 0.833, 'faster and dearer')
    """
    if is_known(before.tokens_per_step) != is_known(after.tokens_per_step):
        raise UsageError(
            "one plan states its tokens per step and the other does not",
            hint="state both, or neither if a step is the same work in both",
        )
    work = 1.0
    if is_known(before.tokens_per_step) and is_known(after.tokens_per_step):
        work = after.tokens_per_step / before.tokens_per_step
    speedup = work * before.step_s / after.step_s
    devices = after.devices / before.devices
    price = _price_ratio(before, after)
    cost = devices * price / speedup
    return Tradeoff(
        speedup_ratio=speedup, device_ratio=devices, efficiency_ratio=speedup / devices, cost_ratio=cost,
        break_even_speedup=devices * price, usd_per_hour_saved=_per_hour_saved(before, after, work),
        verdict=_verdict(speedup, cost), text=_sentence(before, after, speedup, devices, cost),
    )  # fmt: skip


def _price_ratio(before: Plan, after: Plan) -> float | Unknown:
    if not isinstance(before.price, Unknown) and not isinstance(after.price, Unknown):
        return after.price.usd_per_hour / before.price.usd_per_hour
    if before.product and before.product == after.product:
        return 1.0  # one product, one price: it cancels
    return Unknown("the plans are on different or unnamed products without a price for both", ("--usd-per-hour",))


def _per_hour_saved(before: Plan, after: Plan, work: float) -> float | Unknown:
    """Return the extra money over the waiting saved, for the work of one step of `before` [USD/h]."""
    saved_s = before.step_s - after.step_s / work
    extra = cost_of(after).usd_per_step / work - cost_of(before).usd_per_step
    if isinstance(extra, Unknown):
        return extra
    if saved_s <= 0.0:
        return Unknown("the change saves no time")
    if extra <= 0.0:
        return Unknown("the change costs nothing more")
    return extra / (saved_s / 3600.0)


def _word(ratio: float, more: str, less: str) -> str:
    return more if ratio > 1.0 + SAME_COST else less if ratio < 1.0 - SAME_COST else ""


def _verdict(speedup: float, cost: float | Unknown) -> str:
    pace = _word(speedup, "faster", "slower") or "as fast"
    if isinstance(cost, Unknown):
        return f"{pace}, cost unknown"
    return f"{pace} and {_word(cost, 'dearer', 'cheaper') or 'the same cost'}"


def _sentence(before: Plan, after: Plan, speedup: float, devices: float, cost: float | Unknown) -> str:
    pace = f"{after.name} does the work {speedup:.3g} times as fast as {before.name} on {devices:.3g} times the devices"
    if isinstance(cost, Unknown):
        return f"{pace}; what it costs is not known: {cost.reason}"
    used = f" ({format_ratio(speedup / devices)} of what the devices could bring)" if devices != 1.0 else ""
    return f"{pace}{used}, for {cost:.3g} times the money"
