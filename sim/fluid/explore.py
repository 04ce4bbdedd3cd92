"""The trap to play with: a phase portrait of the fluid model that follows sliders, and the simulator on demand."""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from artifact.records.schema import Records
from artifact.reproduce.figures import BLUE, GREEN, GREY, VERMILION
from artifact.workload.load import Load, Surge
from sim.fluid.calibrated import fluid_deployment
from sim.fluid.classify import cache_first
from sim.fluid.dynamics import Path, Segment, integrate, segments
from sim.fluid.equilibria import Landscape, OperatingPoint, landscape, operating_point
from sim.fluid.model import FluidDeployment
from sim.scenario import Deployment, Scenario

SURGE_START_S = 900.0
RUN_S = 6000.0
ENGINES = {
    "H100 1P1D": Deployment(calibration="h100"),
    "H100 1P3D": Deployment(calibration="h100", decode=3),
    "H200 1P1D": Deployment(calibration="h200"),
    "H200 1P3D": Deployment(calibration="h200", decode=3),
}
TIERS = {"GPU only": 0.0, "host ×2": 2.0, "host ×10": 10.0, "host ×40": 40.0}


@dataclass(frozen=True, slots=True)
class Setting:
    """Where the sliders stand. The surge multiplies arrivals by `factor` for `minutes` from minute 15 on."""

    engine: str = "H200 1P3D"
    tier: str = "GPU only"
    rate_per_min: float = 9.0
    factor: float = 2.0
    minutes: float = 10.0
    tool_time: float = 1.0
    output: float = 1.0

    @property
    def deployment(self) -> Deployment:
        return ENGINES[self.engine].model_copy(update={"host_ratio": TIERS[self.tier]})

    @property
    def load(self) -> Load:
        surge = Surge(start_s=SURGE_START_S, end_s=SURGE_START_S + 60 * self.minutes, factor=self.factor)
        return Load(
            rate_per_min=self.rate_per_min,
            duration_s=RUN_S,
            surges=(surge,),
            tool_time_scale=self.tool_time,
            output_scale=self.output,
        )

    @property
    def model(self) -> FluidDeployment:
        return _calibrated(self.engine, self.tier, self.output).scaled(tool_time=self.tool_time)


@cache
def _calibrated(engine: str, tier: str, output: float) -> FluidDeployment:
    return fluid_deployment(Setting(engine, tier).deployment, output_scale=output)


class Portrait:
    """A picture of one setting that moves its marks instead of being drawn anew: departures against arrivals with the
    equilibria and the direction of flow, and the population over time."""

    def __init__(self) -> None:
        self.figure = Figure(figsize=(9.5, 3.4), dpi=90)
        self.figure.set_layout_engine("none")  # whatever the style says: one costs 60 ms a move
        self._canvas = FigureCanvasAgg(self.figure)
        self.figure.subplots_adjust(left=0.06, right=0.98, bottom=0.15, top=0.9, wspace=0.18)
        self.phase, self.course = self.figure.subplots(1, 2)
        self._marks = _phase_marks(self.phase) | _course_marks(self.course)
        self.verdict = ""
        self.update(Setting())

    def update(self, setting: Setting) -> None:
        """Show a setting; any simulated run on show no longer belongs to it and goes."""
        d, rate = setting.model, setting.rate_per_min / 60
        marks, point = landscape(d), operating_point(d, rate)
        stable, tipping = float(point.stable), float(point.tipping)
        pieces = segments(setting.load)
        path = _path(d, pieces, stable, float(marks.peak_sessions))
        reach = np.nanmax([1.6 * d.cliff_sessions, 1.25 * tipping])
        n = np.linspace(0, reach, 300)
        departures = 60 * d.departures(n)
        self._move("departures", n, departures)
        self._move("arrivals", [0, reach], [setting.rate_per_min] * 2)
        self._move("stable", [stable], [setting.rate_per_min])
        self._move("tipping", [tipping], [setting.rate_per_min])
        at = np.linspace(0.03, 0.97, 16) * reach
        grows = d.departures(at) < rate
        self._move("grows", at[grows], np.full(grows.sum(), setting.rate_per_min))
        self._move("shrinks", at[~grows], np.full((~grows).sum(), setting.rate_per_min))
        top = 1.15 * max(float(departures.max()), setting.rate_per_min)
        self.phase.set(xlim=(0, reach), ylim=(0, top))
        minutes = path.time_s / 60
        self._move("population", minutes, path.active)
        self._move("settles", [0, RUN_S / 60], [stable] * 2)
        self._move("edge", [0, RUN_S / 60], [tipping] * 2)
        self._move("simulated", [], [])
        self._marks["surge"].set(x=SURGE_START_S / 60, width=setting.minutes, height=reach)
        self.course.set(xlim=(0, RUN_S / 60), ylim=(0, reach))
        self.verdict = _verdict(d, marks, point, float(path.active.max()), bool(path.active[-1] > tipping))

    def overlay(self, records: Records) -> None:
        """Add the active sessions of a simulated run to the course."""
        time, active = (records.samples[c].to_numpy() for c in ("time_s", "active_sessions"))
        self._move("simulated", time / 60, active)
        self.course.set_ylim(0, max(self.course.get_ylim()[1], 1.05 * active.max()))

    def png(self) -> bytes:
        """The picture as it stands."""
        self._canvas.draw()
        buffer = io.BytesIO()
        Image.fromarray(np.asarray(self._canvas.buffer_rgba())).save(buffer, format="png", compress_level=1)
        return buffer.getvalue()

    def _move(self, mark: str, x: Any, y: Any) -> None:
        self._marks[mark].set_data(x, y)


def simulate(setting: Setting, seed: int = 0) -> Records:
    """Run the simulator at a setting, without any policy. Raises `RuntimeError` saying so where it is not installed."""
    try:
        from sim.run import run
    except ImportError as error:
        raise RuntimeError(
            f"the simulator cannot be loaded here ({error}); the fluid model works without it"
        ) from error
    return run(Scenario(deployment=setting.deployment, load=setting.load, seed=seed))


def panel(run: Callable[[Setting], Records] = simulate) -> Any:
    """The widget: sliders, picture, verdict, and a button that calls `run` at the setting. Needs `ipywidgets`."""
    import ipywidgets as w

    portrait, start = Portrait(), Setting()
    wide = {"style": {"description_width": "8em"}, "layout": w.Layout(width="26em"), "continuous_update": True}
    controls: Mapping[str, Any] = {
        "engine": w.Dropdown(options=list(ENGINES), value=start.engine, description="engine", style=wide["style"]),
        "tier": w.SelectionSlider(options=list(TIERS), value=start.tier, description="cache", **wide),
        "rate_per_min": w.FloatSlider(
            start.rate_per_min, min=0.5, max=25, step=0.1, description="sessions/min", **wide
        ),
        "factor": w.FloatSlider(start.factor, min=1, max=6, step=0.1, description="surge ×", **wide),
        "minutes": w.FloatSlider(start.minutes, min=1, max=40, step=1, description="surge, min", **wide),
        "tool_time": w.FloatLogSlider(start.tool_time, min=-0.5, max=1.5, step=0.05, description="tool time ×", **wide),
        "output": w.FloatLogSlider(start.output, min=-0.5, max=0.7, step=0.05, description="outputs ×", **wide),
    }
    picture, words = w.Image(value=portrait.png(), format="png"), w.HTML(portrait.verdict)
    button = w.Button(description="Run the simulator here", icon="play")

    def setting() -> Setting:
        return Setting(**{name: control.value for name, control in controls.items()})

    def moved(_: Any) -> None:
        portrait.update(setting())
        picture.value, words.value = portrait.png(), portrait.verdict

    def pressed(_: Any) -> None:
        words.value = f"{portrait.verdict}<br><i>simulating 100 minutes ...</i>"
        try:
            portrait.overlay(run(setting()))
        except (RuntimeError, ValueError) as error:
            words.value = f"{portrait.verdict}<br><b>Not simulated:</b> {error}"
        else:
            picture.value, words.value = portrait.png(), f"{portrait.verdict}<br><i>Grey: simulated, seed 0.</i>"

    for control in controls.values():
        control.observe(moved, "value")
    button.on_click(pressed)
    return w.VBox([w.HBox([w.VBox(list(controls.values())), w.VBox([words, button])]), picture])


def _path(d: FluidDeployment, pieces: list[Segment], stable: float, peak: float) -> Path:
    """From the healthy state, or where there is none from the peak (or an empty engine, if there is none either)."""
    start = stable if np.isfinite(stable) else peak if np.isfinite(peak) else 0.0
    return integrate(d, pieces, active=start)


def _verdict(d: FluidDeployment, marks: Landscape, point: OperatingPoint, most: float, trapped: bool) -> str:
    first = "The cache" if cache_first(d) else "Decode memory"
    limits = f"{first} limits this deployment first; at most {60 * float(marks.peak):.1f} sessions/min."
    if np.isnan(point.stable):
        return f"{limits}<br><b>Overloaded</b>: sessions pile up without a surge."
    settles = f"{limits}<br>Settles at {float(point.stable):.0f} sessions"
    if np.isnan(point.tipping):
        return f"{settles}, and any surge drains: <b>no trap at this load</b>."
    end = f"<b>Recovers</b>: the surge gets to {most:.0f} sessions."
    if trapped:
        end = f"<b>Trapped</b>: only arrivals below {60 * float(marks.low):.1f} sessions/min would drain it."
    return f"{settles}, tips beyond {float(point.tipping):.0f}.<br>{end}"


def _phase_marks(ax: Axes) -> dict[str, Any]:
    ax.set(xlabel="active sessions", ylabel="sessions / min")
    marks = {
        "arrivals": ax.plot([], [], color=BLUE, lw=1, ls="--", label="arrivals")[0],
        "departures": ax.plot([], [], color="black", label="departures")[0],
        "grows": ax.plot([], [], ">", color=VERMILION, ms=5, alpha=0.6)[0],
        "shrinks": ax.plot([], [], "<", color=GREEN, ms=5, alpha=0.6)[0],
        "stable": ax.plot([], [], "o", color=GREEN, ms=8, label="settles here")[0],
        "tipping": ax.plot([], [], "o", mfc="white", mec=VERMILION, mew=2, ms=8, label="tips beyond")[0],
    }
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, fontsize=8, frameon=False)
    return marks


def _course_marks(ax: Axes) -> dict[str, Any]:
    ax.set(xlabel="minute", ylabel="active sessions")
    return {
        "surge": ax.axvspan(0, 1, color=GREY, alpha=0.2, lw=0),
        "edge": ax.plot([], [], color=VERMILION, ls=":")[0],
        "settles": ax.plot([], [], color=GREEN, ls=":")[0],
        "simulated": ax.plot([], [], color=GREY, lw=1)[0],
        "population": ax.plot([], [], color="black")[0],
    }
