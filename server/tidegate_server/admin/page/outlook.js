// Now: where a new worker would go on each route, and why.

import { h, show } from "./dom.js";
import { candidates, chip, tier } from "./explain.js";
import { words } from "./words.js";

/** Draw the routes. */
export function drawOutlook(parent, outlook) {
  if (outlook.routes.length === 0) {
    show(parent, h("p", { class: "empty" }, "No route is configured. Workers can ask for explicit models only."));
    return;
  }
  show(parent, outlook.routes.map(route));
}

function route(r) {
  const admitted = r.verdict === "ADMITTED";
  const chosen = r.evaluations.find((e) => e.candidate === r.candidate);
  return h(
    "article",
    { class: `card route ${admitted ? "yes" : "no"}`, "data-key": r.route },
    h("header", {}, h("h3", {}, r.route), h("span", { class: "purpose" }, settings(r))),
    admitted
      ? h("p", { class: "answer" }, h("span", { class: "to" }, h("span", { class: "arrow", "aria-hidden": "true" }, "→"), h("strong", {}, r.candidate)), tier(chosen?.tier))
      : h("p", { class: "answer" }, chip("bad", "refused"), h("strong", {}, words(r.refusal?.reason))),
    h("p", { class: "why" }, admitted ? r.rule : r.refusal?.message),
    r.suggestion && h("p", { class: "help" }, h("span", {}, "Would help: "), r.suggestion),
    candidates(r.evaluations, r.candidate),
  );
}

function settings(r) {
  const told = [r.purpose, `reserve ${r.min_remaining_percent}\u202f%`];
  if (r.prefer_paid_flash) told.push("prefers its paid model");
  else if (r.allow_paid) told.push("may pay when subscriptions are blocked");
  else told.push("never pays");
  if (r.require_flow) told.push("flows only");
  return told.join(" · ");
}
