// One explanation, wherever it stands: the answer, the rule that decided, what would help, each candidate and its facts.

import { h } from "./dom.js";
import { between, count, length, name, percent, seconds, words } from "./words.js";

const LOOK = { ELIGIBLE: "good", BLOCKED: "bad", UNKNOWN: "doubt", STALE: "doubt", BUSY: "warn", NOT_AUTHORIZED: "off", UNSUITABLE: "off" };
const MARK = { good: "✓", bad: "✕", doubt: "?", warn: "!", off: "–" };

/** A word in a shape and a colour, and never in the colour alone. */
export function chip(look, text) {
  return h("span", { class: `chip ${look}` }, h("span", { "aria-hidden": "true" }, `${MARK[look] ?? ""} `), text);
}

/** local, subscription or paid. */
export function tier(value) {
  const kind = words(value);
  return kind && h("span", { class: `tier ${kind}` }, kind);
}

/** The candidates in the order in which they were looked at. `chosen` is marked. */
export function candidates(evaluations, chosen) {
  return h("ol", { class: "candidates" }, evaluations.map((e) => candidate(e, e.candidate === chosen)));
}

function candidate(e, isChosen) {
  const verdict = name(e.verdict);
  const blocker = words(e.blocker);
  return h(
    "li",
    { class: isChosen ? "chosen" : "", "data-key": e.candidate },
    h(
      "div",
      { class: "line" },
      h("span", { class: "candidate" }, e.candidate),
      tier(e.tier),
      chip(LOOK[verdict] ?? "off", words(verdict)),
      blocker && verdict !== "ELIGIBLE" && h("span", { class: "blocker" }, e.confirmed ? `${blocker}, confirmed` : blocker),
    ),
    verdict !== "ELIGIBLE" && h("p", { class: "why" }, e.detail),
    e.facts?.length > 0 &&
      h(
        "details",
        {},
        h("summary", {}, count(e.facts.length, "fact")),
        h("ul", { class: "facts" }, e.facts.map((fact) => h("li", { class: name(fact.freshness).toLowerCase() }, factLine(fact)))),
      ),
  );
}

/** A fact in one line: what it says, how old it is, who told it. */
export function factLine(fact) {
  const age = length(seconds(fact.age));
  const fresh = words(fact.freshness);
  const by = fact.collector_id ? ` by ${fact.collector_id}` : "";
  return `${factValue(fact.observation)} — ${age} old, ${fresh}${by}`;
}

/** What a fact says. */
export function factValue(o) {
  const about = o.model ? `${o.model}: ` : "";
  if (o.health) {
    const load = [];
    if (o.health.running !== undefined) load.push(`${o.health.running} running`);
    if (o.health.waiting !== undefined) load.push(`${o.health.waiting} waiting`);
    if (o.health.kv_usage !== undefined) load.push(`cache ${percent(o.health.kv_usage * 100)} full`);
    return `${about}${words(o.health.state) || "of no known state"}${load.length ? ` (${load.join(", ")})` : ""}`;
  }
  if (o.quota) {
    const scope = o.quota.scope ? ` of ${o.quota.scope}` : "";
    return `${about}window ${o.quota.window}${scope}: ${o.quota.unlimited ? "unlimited" : `${percent(o.quota.remaining_percent ?? 0, 1)} left`}`;
  }
  if (o.balance) return `${about}balance ${o.balance.unlimited ? "unlimited" : `${o.balance.amount} ${o.balance.currency}`}`;
  if (o.availability) return `${about}${words(o.availability.state) || "of no known state"}${words(o.availability.blocker) ? `: ${words(o.availability.blocker)}` : ""}`;
  return about;
}

/** When a fact stops counting, in seconds from `asOf`. */
export function freshFor(fact, asOf) {
  return between(asOf, fact.expire_time);
}
