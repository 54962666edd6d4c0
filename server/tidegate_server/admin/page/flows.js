// Live flows: trees of hops, and five gauges each.

import { get, follow } from "./api.js";
import { h, show } from "./dom.js";
import { chip } from "./explain.js";
import { between, clock, grouped, length, seconds, words } from "./words.js";

const SHOWN = 12;
const SETTLE_MS = 300;

export class Flows {
  constructor(parent) {
    this.parent = parent;
    this.flows = new Map();
    this.refused = new Map();
    this.due = new Set();
  }

  /** Show what there is, then each change. */
  start() {
    follow("/api/flows/events", (kind, event) => this.hear(kind, event), () => this.refresh());
  }

  async refresh() {
    const page = await get(`/api/flows?page_size=${SHOWN * 2}`);
    this.flows = new Map(page.flows.map((flow) => [flow.flow_id, flow]));
    this.draw();
  }

  hear(kind, event) {
    if (kind === "snapshot") return;
    if (kind === "dropped" || !event.flow_id) {
      this.refresh().catch(() => {});
      return;
    }
    if (kind === "refused") {
      const kept = this.refused.get(event.flow_id) ?? [];
      this.refused.set(event.flow_id, [...kept, event.refused].slice(-5));
    }
    this.due.add(event.flow_id);
    this.timer ??= setTimeout(() => this.fetch(), SETTLE_MS);
  }

  /** However many events came, each flow is asked for once. */
  async fetch() {
    const due = [...this.due].slice(-SHOWN);
    this.due.clear();
    this.timer = null;
    const flows = await Promise.all(due.map((id) => get(`/api/flows/${encodeURIComponent(id)}`).catch(() => null)));
    for (const flow of flows) if (flow) this.flows.set(flow.flow_id, flow);
    this.draw();
  }

  draw() {
    const newest = [...this.flows.values()].sort((a, b) => b.open_hops > 0 - (a.open_hops > 0) || (a.start_time < b.start_time ? 1 : -1));
    const ordered = newest.sort((a, b) => Number(b.open_hops > 0) - Number(a.open_hops > 0)).slice(0, SHOWN);
    for (const id of this.refused.keys()) if (!this.flows.has(id)) this.refused.delete(id);
    show(this.parent, ordered.length ? ordered.map((flow) => this.flow(flow)) : h("p", { class: "empty" }, "No flow is known. A gateway that enters a hop starts one."));
  }

  flow(f) {
    const refused = this.refused.get(f.flow_id) ?? [];
    const last = refused.at(-1);
    return h(
      "article",
      { class: `card flow ${f.open_hops > 0 ? "live" : "over"}`, "data-key": f.flow_id },
      h(
        "header",
        {},
        h("h3", {}, f.root_agent || "flow"),
        f.open_hops > 0 ? chip("good", `${f.open_hops} open`) : chip("off", "no open hop"),
        f.refusals > 0 && chip("bad", `${f.refusals} refused`),
        h("code", { title: f.flow_id }, f.flow_id.slice(0, 8), "…"),
        h("time", { datetime: f.start_time, class: "age" }, `since ${clock(f.start_time)}`),
      ),
      h("div", { class: "gauges" }, gauges(f, refused)),
      last && h("p", { class: "why" }, `Last refused: ${last.caller_agent || "the gateway"} → ${last.target_agent}, ${words(last.refusal.reason)}. ${last.refusal.message}`),
      h("ul", { class: "tree", "aria-label": `Hops of ${f.root_agent}` }, tree(f, "")),
    );
  }
}

function gauges(f, refused) {
  const used = f.limits ?? {};
  const running = seconds(used.time) - seconds(f.remaining.time);
  const cycles = refused.filter((r) => words(r.refusal.reason).includes("cycle")).length;
  return [
    gauge("Depth", f.max_depth_reached, used.depth, `${f.max_depth_reached} of ${used.depth}`),
    h("div", { class: `gauge${cycles ? " full" : ""}`, "data-key": "Cycle" }, h("span", { class: "label" }, "Cycle"), h("span", { class: "value" }, cycles ? `${cycles} refused` : "none"), h("span", { class: "track", "aria-hidden": "true" }, h("span", { class: "fill", style: { "--value": cycles ? "100%" : "0%" } }))),
    gauge("Fan-out", f.invocations, used.fan_out, `${f.invocations} of ${used.fan_out}`),
    gauge("Tokens", Number(f.tokens), Number(used.tokens), `${grouped(f.tokens)} of ${grouped(used.tokens)}`),
    gauge("Time", running, seconds(used.time), `${length(running)} of ${length(seconds(used.time))}`),
  ];
}

function gauge(label, value, limit, text) {
  const share = limit > 0 ? Math.min(100, (value / limit) * 100) : 0;
  const look = share >= 100 ? " full" : share >= 80 ? " high" : "";
  return h(
    "div",
    { class: `gauge${look}`, "data-key": label },
    h("span", { class: "label" }, label),
    h("span", { class: "value" }, text),
    h("span", { class: "track", role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": share.toFixed(0), "aria-valuetext": text }, h("span", { class: "fill", style: { "--value": `${share}%` } })),
  );
}

function tree(f, parent) {
  return f.hops
    .filter((hop) => (hop.parent_hop_id ?? "") === parent)
    .map((hop) => {
      const below = tree(f, hop.hop_id);
      const open = !hop.end_time;
      const state = open ? chip("good", "open") : hop.success ? chip("off", "done") : chip("bad", "failed");
      const took = open ? "" : `, ${length(between(hop.start_time, hop.end_time))}`;
      return h(
        "li",
        { "data-key": hop.hop_id },
        h("div", { class: "line" }, h("span", { class: "agent" }, hop.target_agent), state, h("span", { class: "age" }, `${grouped(hop.tokens)} tokens${took}`)),
        below.length > 0 && h("ul", {}, below),
      );
    });
}
