"use strict";
// Sorts and filters the summary, shows what a mark stands for, and turns the light on and off. Nothing else is needed:
// without this script a page of few runs is complete.

const root = document.documentElement;
const table = document.getElementById("summary");
const tip = document.getElementById("tip");

// ---- light and dark

const remember = (theme) => { try { localStorage.setItem("trainmark-theme", theme); } catch { /* not allowed here */ } };
const remembered = () => { try { return localStorage.getItem("trainmark-theme"); } catch { return null; } };
if (["light", "dark"].includes(remembered())) root.dataset.theme = remembered();
document.getElementById("theme").addEventListener("click", () => {
  const dark = getComputedStyle(root).colorScheme === "dark";
  root.dataset.theme = dark ? "light" : "dark";
  remember(root.dataset.theme);
});

// ---- the summary sorts

const collator = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });
const body = table.tBodies[0];

function keyOf(row, column, numeric) {
  const cell = row.cells[column];
  if (!numeric) return cell.dataset.key ?? cell.textContent.trim();
  return cell.dataset.key === undefined ? null : Number(cell.dataset.key);
}

function sortBy(head) {
  const numeric = head.classList.contains("number");
  const before = head.getAttribute("aria-sort");
  // numbers begin with the largest, words with A
  const down = before === "none" ? numeric : before === "ascending";
  for (const other of head.parentNode.cells) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const keyed = [...body.rows].map((row) => [keyOf(row, head.cellIndex, numeric), row]);
  keyed.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null); // what is not known stays last
    const order = numeric ? a - b : collator.compare(a, b);
    return down ? -order : order;
  });
  body.append(...keyed.map(([, row]) => row));
}

for (const head of table.tHead.rows[0].cells) head.firstChild.addEventListener("click", () => sortBy(head));

// ---- and filters

const box = document.getElementById("filter");
if (box) {
  const chips = [...document.querySelectorAll(".chip")];
  const count = document.getElementById("count");
  const rows = [...body.rows].map((row) => ({ row, text: row.textContent.toLowerCase() }));
  const apply = () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = {};
    for (const chip of chips) {
      if (chip.getAttribute("aria-pressed") === "true") (wanted[chip.dataset.field] ??= []).push(chip.dataset.word);
    }
    let shown = 0;
    for (const { row, text } of rows) {
      const fits = words.every((word) => text.includes(word)) &&
        Object.entries(wanted).every(([field, allowed]) => allowed.includes(row.dataset[field]));
      row.hidden = !fits;
      shown += fits;
      const run = row.dataset.run && document.getElementById(row.dataset.run);
      if (run) run.hidden = !fits;
    }
    count.textContent = shown === rows.length ? "" :
      count.dataset.said.replace("{shown}", shown).replace("{all}", rows.length);
  };
  box.addEventListener("input", apply);
  for (const chip of chips) {
    chip.addEventListener("click", () => {
      chip.setAttribute("aria-pressed", chip.getAttribute("aria-pressed") !== "true");
      apply();
    });
  }
}

// ---- a closed run is drawn when it is first opened, and opens when it is led to

for (const fold of document.querySelectorAll(".run-fold")) {
  fold.addEventListener("toggle", () => {
    const later = fold.querySelector(":scope > .later");
    if (!later) return;
    later.remove();
    fold.insertAdjacentHTML("beforeend", later.textContent);
  });
}

function openTarget() {
  const found = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
  if (found && found.querySelector(":scope > details")) found.querySelector(":scope > details").open = true;
}
addEventListener("hashchange", openTarget);
openTarget();

// ---- tips

function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const left = Math.min(x + 14, root.clientWidth - tip.offsetWidth - 8);
  tip.style.left = `${Math.max(8, left) + scrollX}px`;
  tip.style.top = `${(y + 18 + tip.offsetHeight > innerHeight ? y - tip.offsetHeight - 12 : y + 18) + scrollY}px`;
}
function hideTip() { tip.hidden = true; }

addEventListener("pointermove", (event) => {
  const mark = event.target.closest?.("[data-tip]");
  if (mark) showTip(mark.dataset.tip, event.clientX, event.clientY);
  else if (!event.target.closest?.(".chart")) hideTip();
});
addEventListener("focusin", (event) => {
  if (!event.target.dataset?.tip) return;
  const at = event.target.getBoundingClientRect();
  showTip(event.target.dataset.tip, at.right, at.top);
});
addEventListener("focusout", hideTip);
addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });

// ---- line charts tell the value below the pointer, or step through their points by the arrow keys

const digits = (value) => {
  const size = Math.abs(value);
  if (size === 0) return "0";
  const text = size >= 1000 ? Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, " ") : value.toPrecision(4);
  return text;
};

function axis(words) {
  const [low, high, log] = words.split(" ");
  const [from, to] = [Number(low), Number(high)];
  return log ? (share) => from * (to / from) ** share : (share) => from + (to - from) * share;
}

// a path is whole numbers, each point counted from the one before; its own scale makes pixels of them
function pointsOf(path) {
  const numbers = (path.getAttribute("d").match(/-?\d+/g) ?? []).map(Number);
  const fine = path.transform.baseVal[0].matrix.a;
  const points = [];
  for (let [at, x, y] = [0, 0, 0]; at < numbers.length; at += 2) {
    x += numbers[at];
    y += numbers[at + 1];
    points.push([x * fine, y * fine]);
  }
  return points;
}

function begin(chart) {
  const drawing = chart.querySelector("svg");
  const plot = drawing.querySelector(".plot");
  const [width, height] = [plot.width.baseVal.value, plot.height.baseVal.value];
  const [x, y] = [axis(drawing.dataset.x), axis(drawing.dataset.y)];
  const lines = [...plot.querySelectorAll(".line path")].map((path) => ({
    name: path.dataset.name,
    points: pointsOf(path),
    tips: path.dataset.tips && JSON.parse(path.dataset.tips),
  })).filter((line) => line.points.length);
  const cursor = plot.querySelector(".cursor");
  const all = [...new Set(lines.flatMap((line) => line.points.map(([at]) => at)))].sort((a, b) => a - b);
  let current = -1;

  function tell(index) {
    current = Math.max(0, Math.min(all.length - 1, index));
    const at = all[current];
    cursor.setAttribute("x1", at);
    cursor.setAttribute("x2", at);
    cursor.classList.add("on");
    const where = x(at / width);
    const said = [`${drawing.dataset.xName} ${"whole" in drawing.dataset ? Math.round(where) : digits(where)}`];
    for (const { name, points, tips } of lines) {
      if (tips) {
        said.splice(0, said.length, tips[current]);
        break;
      }
      const near = points.reduce((best, point) => Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best);
      const value = `${digits(y(1 - near[1] / height))} ${drawing.dataset.unit}`.trim();
      said.push(name ? `${name}: ${value}` : value);
    }
    const place = plot.getBoundingClientRect();
    const drawn = drawing.getBoundingClientRect();
    const size = drawn.width / drawing.viewBox.baseVal.width;
    showTip(said.join("\n"), drawn.left + (plot.x.baseVal.value + at) * size, Math.max(place.top, drawn.top) + 10);
  }
  function nearest(px) {
    let [low, high] = [0, all.length - 1];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (all[middle] > px) high = middle; else low = middle;
    }
    return px - all[low] < all[high] - px ? low : high;
  }
  chart.addEventListener("pointermove", (event) => {
    const drawn = drawing.getBoundingClientRect();
    const px = (event.clientX - drawn.left) * drawing.viewBox.baseVal.width / drawn.width - plot.x.baseVal.value;
    if (px < -4 || px > width + 4) leave(); else tell(nearest(px));
  });
  const leave = () => { cursor.classList.remove("on"); hideTip(); };
  chart.addEventListener("pointerleave", leave);
  chart.addEventListener("blur", leave);
  chart.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, PageDown: 25, PageUp: -25, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    tell(current < 0 ? 0 : Number.isFinite(step) ? current + step : step < 0 ? 0 : all.length - 1);
  });
}

// a chart is read when it is first touched, so that a page of many opens at once
for (const kind of ["pointerover", "focusin"]) {
  addEventListener(kind, (event) => {
    const chart = event.target.closest?.(".chart");
    if (!chart || chart.dataset.begun) return;
    chart.dataset.begun = "yes";
    begin(chart);
  });
}
