// Capacity: each provider with its facts; bars against the reserve, fading with age.

import { h, show } from "./dom.js";
import { chip, factLine, freshFor } from "./explain.js";
import { between, count, length, name, percent, seconds, words } from "./words.js";

/** Draw the providers. `outlook` has their kinds and the reserves of the routes that use them. */
export function drawCapacity(parent, capacity, outlook) {
  if (outlook.providers.length === 0) {
    show(parent, h("p", { class: "empty" }, "No provider is configured."));
    return;
  }
  const facts = Map.groupBy ? Map.groupBy(capacity.facts, (f) => f.observation.provider) : group(capacity.facts);
  const order = { local: 0, subscription: 1, paid: 2 };
  const providers = [...outlook.providers].sort((a, b) => order[a.kind] - order[b.kind]);
  const more = capacity.left_out > 0 && h("p", { class: "empty" }, `${count(capacity.left_out, "fact")} more; tidegate capacity --provider P lists them.`);
  show(parent, [...providers.map((p) => provider(p, facts.get(p.provider) ?? [], reservesOf(p.provider, outlook), capacity.as_of_time)), more]);
}

function group(facts) {
  const groups = new Map();
  for (const fact of facts) {
    const key = fact.observation.provider;
    groups.set(key, [...(groups.get(key) ?? []), fact]);
  }
  return groups;
}

/** The reserves that routes keep on this provider, the lowest first, each with the routes that keep it. */
function reservesOf(provider, outlook) {
  const kept = new Map();
  for (const r of outlook.routes) {
    if (!r.providers.includes(provider)) continue;
    kept.set(r.min_remaining_percent, [...(kept.get(r.min_remaining_percent) ?? []), r.route]);
  }
  return [...kept].sort(([a], [b]) => a - b).map(([limit, routes]) => ({ limit, routes }));
}

function provider(p, facts, reserves, asOf) {
  const kind = (key) => facts.filter((f) => f.observation[key]);
  return h(
    "article",
    { class: "card provider", "data-key": p.provider },
    h("header", {}, h("h3", {}, p.provider), h("span", { class: `tier ${p.kind}` }, p.kind)),
    h("p", { class: "models" }, p.models.join(", ")),
    facts.length === 0 && h("p", { class: "why" }, chip("doubt", "nothing known"), " No collector has told anything yet."),
    kind("health").map((f) => engine(f, asOf)),
    kind("quota").map((f) => quota(f, reserves, asOf)),
    kind("balance").map((f) => balance(f, asOf)),
    kind("availability").filter(says).map((f) => availability(f, asOf)),
    facts.length > 0 && h("details", {}, h("summary", {}, facts.length === 1 ? "The fact" : `All ${facts.length} facts`), h("ul", { class: "facts" }, facts.map((f) => h("li", {}, factLine(f))))),
  );
}

/** 1 for a fact taken this moment, 0.3 for one about to go stale. */
function strength(fact, asOf) {
  const age = seconds(fact.age);
  const left = Math.max(0, freshFor(fact, asOf));
  return 0.3 + (0.7 * left) / Math.max(age + left, 0.001);
}

function row(fact, asOf, label, value, meter, mark = null) {
  const state = name(fact.freshness).toLowerCase();
  const age = seconds(fact.age);
  const when = state === "fresh" ? `${length(age)} old` : state === "stale" ? `stale: ${length(age)} old` : "over: past its own end";
  const o = fact.observation;
  return h(
    "div",
    { class: `measure ${state}`, "data-key": [label, o.model, o.quota?.window, o.quota?.scope, o.balance?.currency, o.balance?.scope, o.availability?.blocker].join("|") },
    h("div", { class: "line" }, h("span", { class: "label" }, label), mark, h("span", { class: "value" }, value), h("span", { class: "age" }, when)),
    meter && bar(meter, fact, asOf),
  );
}

function bar({ label, value, limits = [], low, text }, fact, asOf) {
  const style = { "--value": `${Math.min(100, Math.max(0, value))}%`, "--strength": strength(fact, asOf).toFixed(2) };
  return h(
    "div",
    { class: `bar${low ? " low" : ""}`, role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": value.toFixed(1), "aria-valuetext": text, style },
    h("span", { class: "fill" }),
    limits.map((limit) => h("span", { class: "limit", style: { "--limit": `${Math.min(100, limit)}%` } })),
  );
}

function quota(fact, reserves, asOf) {
  const q = fact.observation.quota;
  const about = [q.window, q.scope, fact.observation.model].filter(Boolean).join(" · ");
  if (q.unlimited) return row(fact, asOf, about, "unlimited", null);
  const left = q.remaining_percent ?? 0;
  const reset = q.reset_time ? between(asOf, q.reset_time) : 0;
  const value = `${percent(left, 1)} left${reset > 0 ? `, resets in ${length(reset)}` : ""}`;
  const kept = reserves.map(({ limit, routes }) => `${percent(limit, 1)} is the reserve of ${routes.join(", ")}`).join("; ");
  const below = reserves.filter(({ limit }) => left <= limit);
  const limits = reserves.map(({ limit }) => limit);
  const low = left <= 0 || (below.length > 0 && below.length === reserves.length);
  const meter = { label: `${fact.observation.provider} ${about}`, value: left, limits, low, text: kept ? `${value}; ${kept}` : value };
  return row(fact, asOf, about, value, meter, reserveMark(left, below, low));
}

function reserveMark(left, below, low) {
  if (left <= 0) return chip("bad", "exhausted");
  if (low) return chip("bad", "below the reserve");
  return below.length > 0 && chip("warn", `below the reserve of ${below.flatMap(({ routes }) => routes).join(", ")}`);
}

function engine(fact, asOf) {
  const e = fact.observation.health;
  const healthy = name(e.state) === "HEALTHY";
  const about = fact.observation.model || "engine";
  const load = [e.running !== undefined && `${e.running} running`, e.waiting !== undefined && `${e.waiting} waiting`].filter(Boolean).join(", ");
  const mark = healthy ? chip("good", "healthy") : chip(name(e.state) ? "bad" : "doubt", words(e.state) || "unknown");
  if (e.kv_usage === undefined) return row(fact, asOf, about, load, null, mark);
  const free = (1 - e.kv_usage) * 100;
  const text = `${percent(free)} of the cache free`;
  return row(fact, asOf, about, `${text}${load ? `, ${load}` : ""}`, { label: `${fact.observation.provider} ${about} cache`, value: free, text }, mark);
}

function balance(fact, asOf) {
  const b = fact.observation.balance;
  const value = b.unlimited ? "unlimited" : `${b.amount} ${b.currency}`;
  const empty = !b.unlimited && Number(b.amount) <= 0;
  const mark = empty || b.available === false ? chip("bad", empty ? "empty" : "not available") : chip("good", "funded");
  return row(fact, asOf, ["balance", b.scope].filter(Boolean).join(" · "), value, null, mark);
}

/** AVAILABLE for one kind of blocker only lifts that one: it says nothing that is worth a row. */
function says(fact) {
  const a = fact.observation.availability;
  return name(a.state) !== "AVAILABLE" || !name(a.blocker);
}

function availability(fact, asOf) {
  const a = fact.observation.availability;
  const blocked = name(a.state) === "BLOCKED";
  const until = a.until_time ? between(asOf, a.until_time) : 0;
  const mark = name(a.state) === "AVAILABLE" ? chip("good", "available") : chip(blocked ? "bad" : "doubt", words(a.blocker) || words(a.state) || "unknown");
  return row(fact, asOf, fact.observation.model || "account", until > 0 ? `for another ${length(until)}` : "", null, mark);
}
