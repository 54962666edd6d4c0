// Decisions as they happen, and the whole explanation of one.

import { get, follow } from "./api.js";
import { h, show } from "./dom.js";
import { candidates, chip, tier } from "./explain.js";
import { clock, length, seconds, words } from "./words.js";

const KEPT = 500;
const SHOWN = 60;

export class Decisions {
  constructor(elements) {
    this.elements = elements;
    this.known = new Map();
    this.paused = false;
    this.limit = SHOWN;
    elements.list.addEventListener("click", (event) => {
      const row = event.target.closest("button[data-id]");
      if (row) this.explain(row.dataset.id);
    });
    elements.pause.addEventListener("click", () => this.pause(!this.paused));
    elements.filter.addEventListener("input", () => this.draw());
    elements.older.addEventListener("click", () => {
      this.limit += SHOWN;
      this.draw();
    });
  }

  /** Show what is in the log, then what comes. */
  async start() {
    follow("/api/decisions/events", (_, decision) => this.take([decision]));
    await this.refresh();
  }

  /** What other processes have decided is only in the log. */
  async refresh() {
    this.take((await get("/api/decisions?page_size=200")).decisions);
  }

  take(decisions) {
    for (const decision of decisions) if (decision.decision_id) this.known.set(decision.decision_id, decision);
    const newest = [...this.known.values()].sort((a, b) => (a.decide_time < b.decide_time ? 1 : -1)).slice(0, KEPT);
    this.known = new Map(newest.map((decision) => [decision.decision_id, decision]));
    if (!this.paused && !this.waiting) {
      this.waiting = true;
      requestAnimationFrame(() => {
        this.waiting = false;
        this.draw();
      });
    }
  }

  pause(paused) {
    this.paused = paused;
    this.elements.pause.setAttribute("aria-pressed", String(paused));
    this.elements.pause.textContent = paused ? "Go on" : "Pause";
    if (!paused) this.draw();
  }

  draw() {
    const wanted = this.elements.filter.value.trim().toLowerCase();
    const matching = [...this.known.values()].filter((d) => !wanted || text(d).includes(wanted));
    const rows = matching.slice(0, this.limit).map(row);
    const none = this.known.size ? "None of the recent ones match." : "Nothing was decided yet. Ask for an admission, and it shows here.";
    show(this.elements.list, rows.length ? rows : h("li", { class: "empty" }, none));
    this.elements.older.hidden = matching.length <= this.limit;
  }

  async explain(id) {
    const { dialog, title, body } = this.elements;
    body.replaceChildren(h("p", { class: "empty" }, "Looking it up…"));
    title.textContent = "Decision";
    if (!dialog.open) dialog.showModal();
    try {
      const decision = await get(`/api/decisions/${encodeURIComponent(id)}`);
      title.textContent = decision.subject;
      body.replaceChildren(...whole(decision));
    } catch (fault) {
      body.replaceChildren(h("p", { role: "alert" }, fault.message));
    }
    dialog.scrollTop = 0;
  }
}

function text(d) {
  return [d.kind, d.subject, d.outcome, d.reason, words(d.reason), d.candidate, d.message].join(" ").toLowerCase();
}

function outcome(d) {
  if (d.outcome === "ADMITTED") return chip("good", "admitted");
  if (d.outcome === "SELECTED") return chip("good", "selected");
  if (d.outcome === "BYPASSED") return chip("off", "explicit model");
  if (d.outcome === "FALLBACK") return chip("warn", "fallback");
  return chip("bad", d.outcome.toLowerCase());
}

function row(d) {
  const refused = d.outcome === "REFUSED";
  return h(
    "li",
    { "data-key": d.decision_id },
    h(
      "button",
      { type: "button", "data-id": d.decision_id, class: "decision" },
      h("time", { datetime: d.decide_time }, clock(d.decide_time)),
      outcome(d),
      h("span", { class: "what" }, d.kind === "hop" ? `flow ${d.subject.slice(0, 8)}…` : d.subject),
      h("span", { class: "where" }, refused ? words(d.reason) : (d.candidate ?? ""), !refused && tier(d.tier), d.pin_state === "EXISTING" && h("span", { class: "setting" }, "pinned")),
      h("span", { class: "message" }, d.message ?? ""),
    ),
  );
}

function whole(d) {
  const e = d.explanation ?? {};
  const refusal = e.refusal;
  const told = refusal?.message ?? e.message ?? "";
  const rows = [
    ["When", `${clock(d.decide_time)} (${d.decide_time})`],
    ["Kind", d.kind],
    ["Answer", h("span", {}, outcome(d), " ", h("strong", {}, e.candidate || words(d.reason)))],
    told && ["Why", told],
    e.rule && ["The rule", e.rule],
    e.suggestion && ["Smallest change that would admit", e.suggestion],
    refusal && ["To the caller", `${refusal.code}, HTTP ${refusal.http_status}, ${refusal.retryable ? "retryable" : "final"}${refusal.retry_delay ? `, in ${length(seconds(refusal.retry_delay))}` : ""}`],
    ["Id", h("code", {}, d.decision_id)],
  ].filter(Boolean);
  return [
    h("dl", { class: "sheet" }, rows.map(([term, value]) => [h("dt", {}, term), h("dd", {}, value)])),
    e.evaluations?.length > 0 && h("h3", {}, "Candidates, in the order of the decision"),
    e.evaluations?.length > 0 && candidates(e.evaluations, e.candidate),
    h("details", {}, h("summary", {}, "Everything that it read"), h("pre", { tabindex: "0" }, JSON.stringify(d.detail, null, 2))),
  ].filter(Boolean);
}
