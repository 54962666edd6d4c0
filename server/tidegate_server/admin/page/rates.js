// The last hour: figures, and a bar a minute.

import { h, show, svg } from "./dom.js";
import { clock, grouped, percent } from "./words.js";

const MINUTES = 60;
const SERIES = [
  ["first", "admitted on the first choice"],
  ["fallback", "admitted elsewhere (fallback)"],
  ["bypassed", "explicit model"],
  ["refused", "refused"],
];

/** Draw figures and chart. */
export function drawRates(figures, chart, rates) {
  const minutes = byMinute(rates.samples);
  const all = sum(minutes);
  const routed = all.first + all.fallback + all.refused;
  show(figures, [
    figure("Decisions", grouped(routed + all.bypassed), "in the last hour"),
    figure("Fallback", share(all.fallback, all.first + all.fallback), `${grouped(all.fallback)} of ${grouped(all.first + all.fallback)} admissions`),
    figure("Refused", share(all.refused, routed), `${grouped(all.refused)} of ${grouped(routed)} on routes`),
    figure("Paid", share(all.paid, all.first + all.fallback), `${grouped(all.paid)} of the admissions`),
    figure("Agent fallback", share(all.selections_fallback, all.selections), `${grouped(all.selections_fallback)} of ${grouped(all.selections)} selections`),
  ]);
  show(chart, [legend(), picture(minutes), table(minutes)]);
}

function byMinute(samples) {
  const newest = samples.length ? Date.parse(samples.at(-1).end_time) : Date.now();
  const minutes = Array.from({ length: MINUTES }, (_, i) => ({ end: newest - (MINUTES - 1 - i) * 60000, first: 0, fallback: 0, bypassed: 0, refused: 0, paid: 0, selections: 0, selections_fallback: 0 }));
  for (const sample of samples) {
    const place = MINUTES - 1 - Math.floor((newest - Date.parse(sample.end_time)) / 60000);
    const minute = minutes[place];
    if (!minute) continue;
    for (const key of ["fallback", "bypassed", "refused", "paid", "selections", "selections_fallback"]) minute[key] += sample[key];
    minute.first += sample.admitted - sample.fallback;
  }
  return minutes;
}

function sum(minutes) {
  const total = {};
  for (const minute of minutes) for (const [key, value] of Object.entries(minute)) total[key] = (total[key] ?? 0) + value;
  return total;
}

function share(part, whole) {
  return whole ? percent((part / whole) * 100, 1) : "–";
}

function figure(label, value, text) {
  return h("div", { class: "card figure", "data-key": label }, h("span", { class: "label" }, label), h("strong", {}, value), h("span", { class: "age" }, text));
}

function legend() {
  return h("ul", { class: "legend" }, SERIES.map(([key, text]) => h("li", {}, h("span", { class: `swatch ${key}`, "aria-hidden": "true" }), text)));
}

function picture(minutes) {
  const height = 120;
  const total = (m) => SERIES.reduce((n, [key]) => n + m[key], 0);
  const top = Math.max(4, ...minutes.map(total));
  const bars = minutes.flatMap((minute, i) => {
    let y = height;
    return SERIES.map(([key]) => {
      const size = (minute[key] / top) * height;
      y -= size;
      return size > 0 && svg("rect", { class: key, x: i * 10 + 1, y: y.toFixed(2), width: 8, height: size.toFixed(2) });
    });
  });
  const text = `Decisions a minute over the last hour, at most ${grouped(top)}. The numbers are in the table below.`;
  return h(
    "div",
    { class: "plot" },
    h("span", { class: "age" }, `${grouped(top)} a minute`),
    svg("svg", { viewBox: `0 0 ${MINUTES * 10} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": text }, svg("line", { x1: 0, x2: MINUTES * 10, y1: 0.5, y2: 0.5, class: "grid" }), svg("line", { x1: 0, x2: MINUTES * 10, y1: height / 2, y2: height / 2, class: "grid" }), svg("line", { x1: 0, x2: MINUTES * 10, y1: height - 0.5, y2: height - 0.5, class: "base" }), bars),
    h("div", { class: "axis age" }, h("span", {}, "an hour ago"), h("span", {}, "now")),
  );
}

function table(minutes) {
  const told = minutes.filter((m) => SERIES.some(([key]) => m[key] > 0)).reverse();
  return h(
    "details",
    {},
    h("summary", {}, "The numbers"),
    told.length === 0
      ? h("p", { class: "empty" }, "Nothing was decided in the last hour.")
      : h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Decisions by minute" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "until"), SERIES.map(([, text]) => h("th", { scope: "col" }, text)))), h("tbody", {}, told.map((m) => h("tr", {}, h("th", { scope: "row" }, clock(m.end)), SERIES.map(([key]) => h("td", {}, grouped(m[key])))))))),
  );
}
