"use strict";
(() => {
  const at = (id) => document.getElementById(id);
  const picture = at("picture");
  const drawing = picture.querySelector("svg");
  const [, , fullWidth, fullHeight] = drawing.getAttribute("viewBox").split(" ").map(Number);
  const nodes = [...document.querySelectorAll(".node")];
  const story = (node) => node.querySelector("title").textContent;
  const number = (node) => node.id.slice(1);
  const margin = {{ margin }};
  const column = {{ column }};
  let scale = 1;
  let width = fullWidth;

  // selection: inputs in one colour, readers in another
  const light = (node, on) => {
    document.querySelectorAll(`.to${number(node)}`).forEach((path) => path.classList.toggle("into", on));
    document.querySelectorAll(`.from${number(node)}`).forEach((path) => path.classList.toggle("out", on));
  };
  let chosen = null;
  function choose(node) {
    if (chosen) {
      light(chosen, false);
      chosen.classList.remove("chosen");
    }
    chosen = chosen === node ? null : node;
    at("chosen").textContent = chosen ? story(chosen) : "";
    if (chosen) {
      chosen.classList.add("chosen");
      light(chosen, true);
    }
  }
  for (const node of nodes) {
    node.addEventListener("mouseenter", () => light(node, true));
    node.addEventListener("mouseleave", () => node !== chosen && light(node, false));
    node.addEventListener("click", () => choose(node));
    node.addEventListener("keydown", (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), choose(node)));
  }

  function resize(next) {
    const [x, y] = [picture.scrollLeft / scale, picture.scrollTop / scale];
    scale = Math.min(4, Math.max(0.1, next));
    drawing.setAttribute("width", width * scale);
    picture.scrollTo(x * scale, y * scale);
  }
  const fit = () => resize((picture.clientWidth - 2) / width);
  function show(lane) {
    const x = lane === "" ? 0 : margin + Number(lane) * column;
    width = lane === "" ? fullWidth : column;
    drawing.setAttribute("viewBox", `${x} 0 ${width} ${fullHeight}`);
    fit();
  }
  at("lanes").addEventListener("change", (event) => show(event.target.value));
  at("larger").addEventListener("click", () => resize(scale * 1.25));
  at("smaller").addEventListener("click", () => resize(scale / 1.25));
  at("fit").addEventListener("click", fit);
  picture.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      resize(event.deltaY < 0 ? scale * 1.15 : scale / 1.15);
    },
    { passive: false },
  );

  // search: Enter goes to the next match
  let matches = [];
  let current = -1;
  at("search").addEventListener("input", (event) => {
    const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
    matches = words.length ? nodes.filter((node) => words.every((word) => story(node).toLowerCase().includes(word))) : [];
    current = -1;
    drawing.classList.toggle("searching", words.length > 0);
    for (const node of nodes) node.classList.toggle("match", matches.includes(node));
    at("matches").textContent = words.length ? `${matches.length} of ${nodes.length}` : "";
  });
  at("search").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !matches.length) return;
    current = (current + (event.shiftKey ? matches.length - 1 : 1)) % matches.length;
    const box = matches[current].getBoundingClientRect();
    const frame = picture.getBoundingClientRect();
    picture.scrollBy(box.left + box.width / 2 - frame.left - frame.width / 2, box.top + box.height / 2 - frame.top - frame.height / 2);
    if (chosen !== matches[current]) choose(matches[current]);
    at("matches").textContent = `${current + 1} of ${matches.length}`;
  });

  if (picture.clientWidth < 700) {
    at("lanes").value = "0";
    show("0");
  } else if (picture.clientWidth < fullWidth) fit();
})();
