// Curves of the chosen runs over their steps. uPlot draws them; each has a caption with its last values, as text.
/* global uPlot */

import { count, figure, percent } from "./words.js";

const HEIGHT = 230;

export const CURVES = [
  { id: "loss", title: "Loss", unit: "nats per token", column: "loss", also: "validation_loss", show: figure },
  { id: "grad-norm", title: "Gradient norm", unit: "before clipping", column: "grad_norm", show: figure },
  { id: "lr", title: "Learning rate", unit: "", column: "lr", show: figure },
  { id: "speed", title: "Tokens a second", unit: "all workers", column: "tokens_per_second", show: count },
  { id: "seconds", title: "Seconds a step", unit: "", column: "seconds", show: figure },
  { id: "hidden", title: "Communication hidden", unit: "share that no worker waits for", column: "hidden", show: percent,
    range: [0, 1] },
];

function color(index) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--series-${index % 6}`).trim();
}

function axes(curve) {
  const style = getComputedStyle(document.documentElement);
  const [text, line] = [style.getPropertyValue("--quiet").trim(), style.getPropertyValue("--line").trim()];
  const look = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
  const number = (tick) => (Math.abs(tick) >= 1000 ? count(tick) : String(Number(tick.toPrecision(6))));
  const word = curve.range ? curve.show : number;
  return [look, { ...look, size: 64, values: (_, ticks) => ticks.map(word) }];
}

// The rows of committed steps that know a column, as [steps, values].
function pairs(rows, column) {
  const steps = [];
  const values = [];
  for (let row = 0; row < rows.step.length; row += 1) {
    if (!rows.committed[row] || rows.step[row] == null || rows[column][row] == null) continue;
    steps.push(rows.step[row]);
    values.push(rows[column][row]);
  }
  return [steps, values];
}

function lastOf(values) {
  return values.length ? values[values.length - 1] : null;
}

class Curve {
  constructor(parent, curve) {
    this.curve = curve;
    this.figure = parent.appendChild(document.createElement("figure"));
    this.figure.id = `curve-${curve.id}`;
    this.caption = this.figure.appendChild(document.createElement("figcaption"));
    this.place = this.figure.appendChild(document.createElement("div"));
    this.shape = "";
    this.plot = null;
  }

  // `runs`: [{ name, index, rows }], the first one is the page's run.
  draw(runs, anew) {
    const lines = [];
    for (const run of runs) {
      lines.push({ label: run.name, index: run.index, data: pairs(run.rows, this.curve.column), dash: [] });
      if (!this.curve.also) continue;
      const data = pairs(run.rows, this.curve.also);
      // Beside one run a colour is free; of several runs each has its own.
      const index = runs.length > 1 ? run.index : run.index + 1;
      if (data[0].length) lines.push({ label: `${run.name}, validation`, index, data, dash: [6, 4] });
    }
    const known = lines.filter((line) => line.data[0].length);
    this.figure.hidden = !known.length;
    if (!known.length) return;
    this.caption.replaceChildren(...this.words(known, runs.length > 1));
    const data = uPlot.join(known.map((line) => line.data));
    const shape = JSON.stringify(known.map((line) => [line.label, line.index]));
    if (anew || shape !== this.shape || !this.plot) {
      this.plot?.destroy();
      this.shape = shape;
      this.plot = new uPlot(this.options(known), data, this.place);
    } else {
      const zoomed = this.plot.scales.x.min > this.plot.data[0][0] || this.plot.scales.x.max < lastOf(this.plot.data[0]);
      this.plot.setData(data, !zoomed);
      if (zoomed) this.plot.redraw();
    }
  }

  words(lines, several) {
    const { title, unit, show } = this.curve;
    const name = document.createElement("strong");
    name.textContent = title;
    const last = lines.map((line) => {
      const which = several || line.dash.length ? `${line.label.split(", ").slice(several ? 0 : -1).join(", ")} ` : "";
      return `${which}${show(lastOf(line.data[1]))}`;
    });
    return [name, ` ${last.join(", ")}${unit ? ` (${unit})` : ""}`];
  }

  options(lines) {
    return {
      width: this.width(), height: HEIGHT, legend: { show: false }, axes: axes(this.curve),
      scales: { x: { time: false }, y: this.curve.range ? { range: this.curve.range } : {} },
      cursor: { sync: { key: "steps" }, drag: { x: true, y: false } },
      series: [
        {},
        ...lines.map((line) => ({
          label: line.label, stroke: color(line.index), width: line.dash.length ? 2 : 1.5, dash: line.dash, spanGaps: true,
          points: { show: line.dash.length > 0 && line.data[0].length < 60 },
        })),
      ],
    };
  }

  width() {
    return Math.max(200, this.figure.clientWidth - 16);
  }

  fit() {
    this.plot?.setSize({ width: this.width(), height: HEIGHT });
  }

  showAll() {
    if (!this.plot) return;
    const steps = this.plot.data[0];
    this.plot.setScale("x", { min: steps[0], max: lastOf(steps) });
  }
}

export class Charts {
  constructor(parent) {
    this.curves = CURVES.map((curve) => new Curve(parent, curve));
    this.runs = [];
    new ResizeObserver(() => this.curves.forEach((curve) => curve.fit())).observe(parent);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw(this.runs, true));
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.curves.forEach((curve) => curve.showAll());
    });
  }

  draw(runs, anew = false) {
    this.runs = runs;
    this.curves.forEach((curve) => curve.draw(runs, anew));
  }
}
