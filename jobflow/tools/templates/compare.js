"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const hidden = new Set();
  const margin = { left: 56, right: 12, top: 10, bottom: 30 };
  const colour = (i) => (i < 6 ? `var(--p${i})` : `hsl(${(i * 137.5) % 360} 60% 52%)`);
  const short = (v) => (v === 0 ? "0" : Math.abs(v) >= 1e4 || Math.abs(v) < 1e-3 ? v.toExponential(2) : String(Number(v.toPrecision(4))));

  function svg(name, attributes, parent) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    parent.appendChild(element);
    return element;
  }

  function html(name, text, parent) {
    const element = document.createElement(name);
    element.textContent = text;
    parent.appendChild(element);
    return element;
  }

  // the centred mean over a share of the points; the window shrinks near both ends
  function smooth(values, share) {
    const reach = Math.floor((values.length * share) / 200);
    if (!reach) return values;
    const sums = [0];
    for (const value of values) sums.push(sums[sums.length - 1] + value);
    return values.map((_, i) => {
      const r = Math.min(reach, i, values.length - 1 - i);
      return (sums[i + r + 1] - sums[i - r]) / (2 * r + 1);
    });
  }

  // the steps between ticks are 1, 2 or 5 times a power of ten
  function ticks(low, high, count) {
    const raw = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].find((factor) => factor * power >= raw) * power;
    const result = [];
    for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i++) result.push(i * step);
    return result;
  }

  function curves() {
    const metric = at("metric").value;
    const log = at("log").checked;
    let dropped = 0;
    const lines = [];
    data.runs.forEach((run, i) => {
      if (hidden.has(i) || !run.curves[metric]) return;
      const [steps, raw] = run.curves[metric];
      const values = smooth(raw, Number(at("smoothing").value));
      const points = steps.map((step, j) => [step, values[j]]).filter(([, value]) => !log || value > 0);
      dropped += steps.length - points.length;
      if (points.length) lines.push({ name: run.name, colour: colour(i), points });
    });
    at("note").textContent = dropped ? `${dropped} values of 0 or less are not on a logarithmic scale` : "";
    return lines;
  }

  function draw() {
    const chart = at("chart");
    const log = at("log").checked;
    const lines = curves();
    const share = Number(at("smoothing").value);
    at("window").textContent = share ? `${share} %` : "none";
    chart.replaceChildren();
    if (!lines.length) return void html("p", "No run is selected that has this metric.", chart);
    const width = Math.max(260, chart.clientWidth);
    const height = Math.max(240, Math.min(440, width * 0.6));
    const points = lines.flatMap((line) => line.points);
    let [left, right, low, high] = points.reduce(
      ([a, b, c, d], [x, y]) => [Math.min(a, x), Math.max(b, x), Math.min(c, y), Math.max(d, y)],
      [Infinity, -Infinity, Infinity, -Infinity],
    );
    if (left === right) [left, right] = [left - 1, right + 1];
    if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - 0.5, high + 0.5];
    const scaled = log ? Math.log10 : (v) => v;
    const x = (v) => margin.left + ((v - left) / (right - left)) * (width - margin.left - margin.right);
    const y = (v) => height - margin.bottom - ((scaled(v) - scaled(low)) / (scaled(high) - scaled(low))) * (height - margin.top - margin.bottom);
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img" }, chart);
    svg("title", {}, root).textContent = `${at("metric").value} by step`;
    let marks = ticks(low, high, 5);
    if (log) {
      marks = ticks(Math.log10(low), Math.log10(high), 5).map((v) => 10 ** v);
    }
    for (const value of marks) {
      svg("line", { x1: margin.left, x2: width - margin.right, y1: y(value), y2: y(value), stroke: "var(--rule)" }, root);
      svg("text", { x: margin.left - 6, y: y(value) + 4, "text-anchor": "end" }, root).textContent = short(value);
    }
    for (const value of ticks(left, right, width < 500 ? 3 : 6)) {
      svg("text", { x: x(value), y: height - 10, "text-anchor": "middle" }, root).textContent = short(value);
    }
    for (const line of lines) {
      const path = line.points.map(([a, b], i) => `${i ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");
      svg("path", { d: path, fill: "none", stroke: line.colour, "stroke-width": 1.8, "stroke-linejoin": "round" }, root);
      if (line.points.length < 40) {
        for (const [a, b] of line.points) svg("circle", { cx: x(a), cy: y(b), r: 2.6, fill: line.colour }, root);
      }
    }
    hover(chart, root, lines, { x, y, width, height, left, right });
  }

  function nearest(points, step) {
    let [a, b] = [0, points.length - 1];
    while (b - a > 1) {
      const middle = (a + b) >> 1;
      if (points[middle][0] < step) a = middle;
      else b = middle;
    }
    return Math.abs(points[a][0] - step) <= Math.abs(points[b][0] - step) ? points[a] : points[b];
  }

  function hover(chart, root, lines, scale) {
    const rule = svg("line", { y1: margin.top, y2: scale.height - margin.bottom, stroke: "var(--faint)", visibility: "hidden" }, root);
    const tip = html("div", "", chart);
    tip.className = "tip";
    tip.hidden = true;
    const hide = () => {
      tip.hidden = true;
      rule.setAttribute("visibility", "hidden");
    };
    const show = (event) => {
      const box = root.getBoundingClientRect();
      const px = ((event.clientX - box.left) / box.width) * scale.width;
      const inner = scale.width - margin.left - margin.right;
      const step = scale.left + Math.min(1, Math.max(0, (px - margin.left) / inner)) * (scale.right - scale.left);
      const close = lines.map((line) => [line, nearest(line.points, step)]).sort((one, other) => other[1][1] - one[1][1]);
      tip.replaceChildren();
      html("b", `step ${Math.round(step).toLocaleString("en")}`, tip);
      for (const [line, [at_step, value]] of close.slice(0, 14)) {
        const row = html("div", "", tip);
        html("i", "", row).style.background = line.colour;
        row.append(`${short(value)}  ${line.name} (step ${Math.round(at_step)})`);
      }
      if (close.length > 14) html("div", `and ${close.length - 14} more`, tip);
      tip.hidden = false;
      tip.style.left = px > scale.width / 2 ? "auto" : `${(px / scale.width) * 100 + 2}%`;
      tip.style.right = px > scale.width / 2 ? `${(1 - px / scale.width) * 100 + 2}%` : "auto";
      rule.setAttribute("x1", scale.x(step));
      rule.setAttribute("x2", scale.x(step));
      rule.setAttribute("visibility", "visible");
    };
    root.addEventListener("pointermove", show);
    root.addEventListener("pointerdown", show);
    root.addEventListener("pointerleave", hide);
  }

  for (const name of data.metrics) html("option", name, at("metric")).value = name;
  data.runs.forEach((run, i) => {
    const label = html("label", "", at("legend"));
    const box = document.createElement("input");
    box.type = "checkbox";
    box.checked = true;
    box.addEventListener("change", () => {
      if (box.checked) hidden.delete(i);
      else hidden.add(i);
      draw();
    });
    label.appendChild(box);
    html("i", "", label).style.background = colour(i);
    label.append(run.name);
  });
  for (const id of ["metric", "smoothing", "log"]) at(id).addEventListener("input", draw);
  window.addEventListener("resize", draw);
  draw();
})();
