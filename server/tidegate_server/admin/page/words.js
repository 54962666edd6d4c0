// How values are put for people.

const PREFIXES = /^(CANDIDATE_VERDICT|VERDICT|BLOCKER|TIER|FRESHNESS|HEALTH_STATE|AVAILABILITY_STATE|REFUSAL_REASON|PIN_STATE)_/;

/** QUOTA_EXHAUSTED of BLOCKER_QUOTA_EXHAUSTED; "" of an unspecified one. */
export function name(value) {
  const short = String(value ?? "").replace(PREFIXES, "");
  return short === "UNSPECIFIED" || short === "NONE" ? "" : short;
}

/** quota exhausted */
export function words(value) {
  return name(value).toLowerCase().replaceAll("_", " ");
}

/** Seconds of the protocol's JSON: "1.500s". */
export function seconds(text) {
  return Number.parseFloat(text ?? "0") || 0;
}

/** A length of time: 0.4 s, 41 s, 12 min, 3 h, 5 d. */
export function length(value) {
  const s = Math.max(0, value);
  if (s < 9.95) return `${s.toFixed(1)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} d`;
}

/** 12 288 */
export function grouped(value) {
  return Math.round(Number(value)).toString().replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

/** 58.3 % */
export function percent(value, digits = 0) {
  return `${Number(value).toFixed(digits).replace(/\.0+$/, "")}\u202f%`;
}

/** The time of day, where the reader is. */
export function clock(text) {
  const time = new Date(text);
  return Number.isNaN(time.getTime()) ? "" : time.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
}

/** Seconds from one moment of the server's clock to another. */
export function between(from, to) {
  return (Date.parse(to) - Date.parse(from)) / 1000;
}

/** 1 fact, 3 facts */
export function count(number, one, many = `${one}s`) {
  return `${grouped(number)} ${number === 1 ? one : many}`;
}
