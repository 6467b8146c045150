"use strict";
// Charts of curves by step, from the JSON inside each element of the class "plots"; plots.py describes the JSON.
// uPlot draws axes and the grid and reports pointers.  The curves are drawn here, because each of them has its own steps.
(() => {
  const ROWS = 14; // maximum number of values under the pointer
  const WHOLE = [1, 2, 5].flatMap((factor) => Array.from({ length: 13 }, (_, power) => factor * 10 ** power)).sort((a, b) => a - b);

  const css = (name) => (name.startsWith("--") ? getComputedStyle(document.documentElement).getPropertyValue(name).trim() : name);
  const short = (v) => (v === 0 ? "0" : Math.abs(v) >= 1e6 || Math.abs(v) < 1e-3 ? String(Number(v.toExponential(3))) : String(Number(v.toPrecision(5))));
  const clamp = (v, low, high) => Math.min(high, Math.max(low, v));

  function element(name, parent, attributes = {}, text = "") {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.textContent = text;
    parent.append(node);
    return node;
  }

  // the centred mean over a share of the points in percent; the window shrinks near both ends
  function smooth(values, share) {
    const reach = Math.max(1, Math.floor((values.length * share) / 200));
    const sums = [0];
    for (const value of values) sums.push(sums[sums.length - 1] + value);
    return values.map((_, i) => {
      const r = Math.min(reach, i, values.length - 1 - i);
      return (sums[i + r + 1] - sums[i - r]) / (2 * r + 1);
    });
  }

  // the index of the step nearest to `step` in ascending `steps`
  function nearest(steps, step) {
    let [a, b] = [0, steps.length - 1];
    while (b - a > 1) {
      const middle = (a + b) >> 1;
      if (steps[middle] < step) a = middle;
      else b = middle;
    }
    return Math.abs(steps[a] - step) <= Math.abs(steps[b] - step) ? a : b;
  }

  // values 1, 2 and 5 times powers of ten; only the powers for wide ranges
  function decades(low, high) {
    const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
    const factors = last - first > 3 ? [1] : [1, 2, 5];
    const every = Math.ceil((last - first) / 6);
    const marks = [];
    for (let power = first; power <= last; power++) if ((power - first) % every === 0) for (const factor of factors) marks.push(factor * 10 ** power);
    return marks.filter((mark) => mark >= low && mark <= high);
  }

  function legend(parent, series, hidden, changed) {
    for (const one of series) {
      const label = element("label", parent);
      const box = element("input", label, { type: "checkbox" });
      box.checked = true;
      element("i", label).style.background = one.colour.startsWith("--") ? `var(${one.colour})` : one.colour;
      label.append(one.name);
      box.addEventListener("change", () => {
        if (box.checked) hidden.delete(one.name);
        else hidden.add(one.name);
        changed();
      });
    }
  }

  class Plot {
    constructor(spec, figure, group) {
      Object.assign(this, { spec, figure, group, log: spec.log, hidden: group.hidden ?? new Set() });
      this.place = figure.querySelector(".live");
      this.box = element("div", this.place);
      this.buttons(figure.querySelector("figcaption"));
      if (!group.hidden && spec.series.length > 1) legend(element("div", this.place, { class: "choices live" }), spec.series, this.hidden, () => this.build());
    }

    buttons(caption) {
      const tools = element("span", caption, { class: "tools live" });
      const button = (text, label, action) => {
        const node = element("button", tools, { type: "button", "aria-label": `${label}: ${this.spec.title}`, title: label }, text);
        node.addEventListener("click", () => action(node));
        return node;
      };
      const log = button("log", "logarithmic scale", () => {
        this.log = !this.log;
        log.setAttribute("aria-pressed", this.log);
        this.build();
      });
      log.setAttribute("aria-pressed", this.log);
      log.disabled = !this.spec.series.some((one) => one.y.some((v) => v > 0));
      button("+", "zoom in", () => this.scale(0.5));
      button("−", "zoom out", () => this.scale(2));
      button("all", "all steps", () => this.group.zoom(null));
      const large = button("⤢", "enlarge", () => {
        large.setAttribute("aria-pressed", this.figure.classList.toggle("large"));
        this.build();
      });
    }

    // zoom around the pointer's last step, or around the centre
    scale(factor) {
      const [low, high] = this.group.range ?? this.group.all;
      const centre = this.step >= low && this.step <= high ? this.step : (low + high) / 2;
      const half = ((high - low) * factor) / 2;
      this.group.zoom([centre - half, centre + half]);
    }

    curves() {
      const share = this.group.smoothing;
      const curves = [];
      for (const one of this.spec.series) {
        if (this.hidden.has(one.name)) continue;
        const noisy = one.smooth && share > 0 && one.y.length >= this.group.noisy;
        const curve = { ...one, x: one.x, raw: one.y, y: noisy ? smooth(one.mean ?? one.y, share) : one.y, noisy, colour: css(one.colour) };
        if (noisy && this.group.faint) curves.push({ ...curve, y: one.y, thin: true });
        curves.push(curve);
      }
      return curves;
    }

    // the range of the y axis for the visible steps
    limits() {
      const [left, right] = this.group.range ?? this.group.all;
      let [low, high] = [Infinity, -Infinity];
      for (const { x, y } of this.drawn) {
        for (let i = 0; i < x.length; i++) {
          if (x[i] >= left && x[i] <= right && !(this.log && !(y[i] > 0))) [low, high] = [Math.min(low, y[i]), Math.max(high, y[i])];
        }
      }
      if (low > high) return this.log ? [0.1, 1] : [0, 1];
      if (this.log) {
        const room = Math.max((high / low) ** 0.05, 1.05);
        return [low / room, high * room];
      }
      const room = Math.max((high - low) * 0.05, this.spec.share ? (0.1 - (high - low)) / 2 : 0, high === low ? Math.abs(high) * 0.1 || 0.5 : 0);
      return [this.spec.zero && low >= 0 ? 0 : low - room, high + room];
    }

    text(value) {
      return this.spec.share ? `${short(Number((100 * value).toPrecision(5)))} %` : short(value);
    }

    options(width) {
      const axis = { stroke: () => css("--faint"), font: "12px system-ui, sans-serif", grid: { stroke: () => css("--rule"), width: 1 }, ticks: { stroke: () => css("--rule"), size: 4 } };
      const values = (_, marks) => marks.map((mark) => this.text(mark));
      const up = { ...axis, size: 62, values, ...(this.log ? { splits: (_u, _i, low, high) => decades(low, high), filter: (_, marks) => marks } : {}) };
      const across = { ...axis, size: 30, incrs: WHOLE, values: (_, marks) => marks.map((mark) => mark.toLocaleString("en")), space: 55 };
      return {
        width,
        height: this.figure.classList.contains("large") ? clamp(width * 0.5, 260, 520) : clamp(width * 0.62, 210, 300),
        padding: [10, 12, 0, 0],
        legend: { show: false },
        scales: { x: { time: false, range: () => this.group.range ?? this.group.all }, y: { distr: this.log ? 3 : 1, range: () => this.limits() } },
        axes: [across, up],
        cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false }, bind: { dblclick: () => () => this.group.zoom(null) } },
        series: [{}, ...this.drawn.map((curve) => this.series(curve))],
        hooks: { setCursor: [() => this.hover()], setSelect: [(u) => this.select(u)] },
      };
    }

    series(curve) {
      const stroke = curve.colour;
      const width = curve.thin ? 0.8 : 1.8;
      return { stroke, fill: stroke, width, alpha: curve.thin ? 0.35 : 1, points: { show: false }, spanGaps: true, paths: (u) => this.path(u, curve) };
    }

    path(u, curve) {
      const [stroke, fill] = [new Path2D(), new Path2D()];
      const radius = 2.8 * devicePixelRatio;
      const marked = !curve.noisy && (curve.x.length === 1 || (curve.x.length < this.group.few && curve.marks));
      let down = false;
      for (let i = 0; i < curve.x.length; i++) {
        const value = curve.y[i];
        if (this.log && !(value > 0)) {
          down = false;
          continue;
        }
        const [x, y] = [u.valToPos(curve.x[i], "x", true), u.valToPos(value, "y", true)];
        if (down) stroke.lineTo(x, y);
        else stroke.moveTo(x, y);
        down = true;
        if (marked) {
          fill.moveTo(x + radius, y);
          fill.arc(x, y, radius, 0, 2 * Math.PI);
        }
      }
      return { stroke, fill, clip: null, band: null, gaps: null, flags: 1 };
    }

    build() {
      this.plot?.destroy();
      this.box.replaceChildren();
      this.drawn = this.curves();
      this.width = Math.max(220, this.place.clientWidth);
      const ends = this.group.all;
      this.plot = new uPlot(this.options(this.width), [ends, ...this.drawn.map(() => [null, null])], this.box);
      this.plot.root.setAttribute("role", "img");
      this.plot.root.setAttribute("aria-label", `${this.spec.title} by step`);
      this.tip = element("div", this.plot.over, { class: "tip" });
      this.tip.hidden = true;
      this.dots = [];
      const touched = (event) => {
        const box = this.plot.over.getBoundingClientRect();
        this.group.active = this;
        this.plot.setCursor({ left: event.touches[0].clientX - box.left, top: event.touches[0].clientY - box.top });
      };
      for (const name of ["touchstart", "touchmove"]) this.plot.over.addEventListener(name, touched, { passive: true });
      this.plot.over.addEventListener("mouseenter", () => (this.group.active = this));
    }

    resize() {
      const width = Math.max(220, this.place.clientWidth);
      if (this.plot && Math.abs(width - this.width) > 1) this.build();
    }

    select(u) {
      const { left, width } = u.select;
      if (width < 6) return;
      u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      this.group.zoom([u.posToVal(left, "x"), u.posToVal(left + width, "x")]);
    }

    hover() {
      const { left } = this.plot?.cursor ?? {};
      if (!this.tip) return;
      for (const dot of this.dots) dot.remove();
      this.dots = [];
      this.tip.hidden = true;
      if (left === undefined || left < 0) {
        if (this.group.active === this) this.group.point(this, null);
        return;
      }
      if (this.group.active !== this) return;
      this.step = this.plot.posToVal(left, "x");
      this.group.point(this, this.step);
      const rows = [];
      for (const curve of this.drawn) {
        if (curve.thin || !curve.x.length) continue;
        const i = nearest(curve.x, this.step);
        if (!(this.log && !(curve.y[i] > 0))) rows.push([curve, i]);
      }
      rows.sort(([a, i], [b, j]) => b.y[j] - a.y[i]);
      if (rows.length) this.show(rows, left);
    }

    show(rows, left) {
      const { plot, tip } = this;
      const at = plot.valToPos;
      const steps = new Set(rows.map(([curve, i]) => curve.x[i]));
      const shownStep = steps.size === 1 ? [...steps][0] : Math.round(this.step);
      tip.replaceChildren();
      element("b", tip, {}, `step ${shownStep.toLocaleString("en")}`);
      for (const [curve, i] of rows.slice(0, ROWS)) {
        const row = element("div", tip);
        element("i", row).style.background = curve.colour;
        element("b", row, {}, this.text(curve.raw[i]));
        const notes = [curve.noisy ? `mean ${this.text(curve.y[i])}` : "", steps.size > 1 ? `step ${curve.x[i].toLocaleString("en")}` : ""].filter(Boolean);
        element("span", row, {}, `${curve.name}${notes.length ? ` (${notes.join(", ")})` : ""}`);
        const dot = element("i", plot.over, { class: "dot" });
        dot.style.background = curve.colour;
        dot.style.left = `${plot.valToPos(curve.x[i], "x")}px`;
        dot.style.top = `${plot.valToPos(curve.y[i], "y")}px`;
        this.dots.push(dot);
      }
      if (rows.length > ROWS) element("div", tip, {}, `and ${rows.length - ROWS} more`);
      tip.hidden = false;
      const width = plot.over.clientWidth;
      tip.style.left = left > width / 2 ? "auto" : `${left + 12}px`;
      tip.style.right = left > width / 2 ? `${width - left + 12}px` : "auto";
    }
  }

  // the charts of one element: a common range of steps, a common smoothing, and a common pointer
  function start(root) {
    const tree = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
    const steps = tree.charts.flatMap((chart) => chart.series.flatMap(({ x }) => [x[0], x[x.length - 1]]));
    const [first, last] = [Math.min(...steps), Math.max(...steps)];
    const room = first === last ? 1 : (last - first) * 0.02;
    const group = { all: [first - room, last + room], range: null, smoothing: tree.smoothing, noisy: tree.noisy, few: tree.few, faint: !tree.shared, hidden: tree.shared ? new Set() : null };
    const figures = root.querySelectorAll(".plot");
    const plots = tree.charts.map((spec, i) => new Plot(spec, figures[i], group));
    const build = () => plots.forEach((plot) => plot.build());
    group.zoom = (range) => {
      const [low, high] = group.all;
      const [a, b] = range ?? group.all;
      group.range = b - a < 1 || b - a >= high - low ? (b - a < 1 ? group.range : null) : [Math.max(a, low), Math.min(b, high)];
      const [min, max] = group.range ?? group.all;
      for (const { plot } of plots) plot.setScale("x", { min, max });
    };
    group.point = (from, step) => {
      for (const { plot } of plots) if (plot !== from.plot) plot.setCursor({ left: step === null ? -10 : plot.valToPos(step, "x"), top: 0 }, false);
    };
    if (tree.shared) {
      const names = new Map(tree.charts.flatMap((chart) => chart.series.map((one) => [one.name, one])));
      const choices = root.querySelector(".choices");
      legend(choices, [...names.values()], group.hidden, build);
      for (const [text, on] of [["all runs", true], ["no runs", false]]) {
        element("button", root.querySelector(".controls"), { type: "button" }, text).addEventListener("click", () => {
          for (const box of choices.querySelectorAll("input")) box.checked = on;
          for (const name of names.keys()) group.hidden[on ? "delete" : "add"](name);
          build();
        });
      }
    }
    const slider = root.querySelector(".smoothing");
    const showSmoothing = () => (slider.nextElementSibling.textContent = group.smoothing ? `${group.smoothing} %` : "none");
    slider?.addEventListener("input", () => {
      group.smoothing = Number(slider.value);
      showSmoothing();
      build();
    });
    if (slider) showSmoothing();
    build();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", build);
    new ResizeObserver(() => plots.forEach((plot) => plot.resize())).observe(root);
  }

  document.documentElement.classList.add("scripted");
  document.querySelectorAll(".plots").forEach(start);

  // closed parts of the page are printed too
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const one of closed) one.open = true;
  });
  addEventListener("afterprint", () => {
    for (const one of closed) one.open = false;
  });
})();
