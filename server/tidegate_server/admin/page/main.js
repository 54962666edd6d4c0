// Brings the parts together: asks while the page is seen, shows what came, says when nobody answers.

import { get, Refused, token } from "./api.js";
import { drawCapacity } from "./capacity.js";
import { Decisions } from "./decisions.js";
import { h, show } from "./dom.js";
import { Flows } from "./flows.js";
import { drawOutlook } from "./outlook.js";
import { drawRates } from "./rates.js";

const NOW_MS = 2000;
const SLOW_MS = 10000;
const THEMES = ["auto", "light", "dark"];
const KEPT_THEME = "tidegate.theme";

const at = (id) => document.getElementById(id);

const decisions = new Decisions({ list: at("decision-list"), pause: at("pause"), filter: at("filter"), older: at("older"), dialog: at("explanation"), title: at("explanation-title"), body: at("explanation-body") });
const flows = new Flows(at("flow-list"));

async function now() {
  const [outlook, capacity, status] = await Promise.all([get("/api/outlook"), get("/api/capacity"), get("/api/status")]);
  drawOutlook(at("outlook"), outlook);
  drawCapacity(at("providers"), capacity, outlook);
  drawStatus(status);
}

async function slowly() {
  drawRates(at("rate-figures"), at("rate-chart"), await get("/api/rates"));
  await Promise.all([decisions.refresh(), flows.refresh()]);
}

function say(text, look) {
  const state = at("state");
  if (state.textContent !== text) state.textContent = text;
  state.className = `pill ${look}`;
}

function drawStatus(status) {
  say(status.ready ? "ready" : "not ready", status.ready ? "good" : "bad");
  const broken = Object.entries(status.dependencies).filter(([, state]) => state !== "ok").map(([what, state]) => `${what}: ${state}`);
  const fault = status.configuration_error && `The last change of the configuration was not taken over, an older one serves. ${status.configuration_error}`;
  const told = [...broken, fault, ...status.warnings].filter(Boolean);
  show(at("warnings"), told.length ? h("div", { class: "card notice", role: "status" }, h("h2", {}, "What an operator should know"), h("ul", {}, told.map((text) => h("li", {}, text)))) : []);
}

/** Ask for ever, but only while somebody looks. */
async function repeat(ask, every) {
  for (;;) {
    if (!document.hidden) {
      try {
        await ask();
      } catch (fault) {
        if (fault instanceof Refused && [401, 403].includes(fault.status)) {
          signIn(fault);
          return;
        }
        say(fault instanceof Refused ? fault.message : "no answer; what you see is old", "bad");
      }
    }
    await new Promise((done) => setTimeout(done, every));
  }
}

function signIn(fault) {
  say("a token is needed", "bad");
  document.body.classList.add("locked");
  at("sign-in").hidden = false;
  at("sign-in-fault").textContent = token.get() ? fault.message : "";
  at("token").focus();
}

at("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(at("token").value.trim());
  location.reload();
});

at("forget").addEventListener("click", () => {
  token.forget();
  location.reload();
});
at("forget").hidden = !token.get();

function useTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  at("theme").textContent = `◐ ${theme}`;
  at("theme").setAttribute("aria-label", `Theme: ${theme}`);
}

at("theme").addEventListener("click", () => {
  const theme = THEMES[(THEMES.indexOf(localStorage.getItem(KEPT_THEME) ?? "auto") + 1) % THEMES.length];
  localStorage.setItem(KEPT_THEME, theme);
  useTheme(theme);
});
useTheme(THEMES.includes(localStorage.getItem(KEPT_THEME)) ? localStorage.getItem(KEPT_THEME) : "auto");

repeat(now, NOW_MS);
repeat(slowly, SLOW_MS);
decisions.start().catch(() => {});
flows.start();
