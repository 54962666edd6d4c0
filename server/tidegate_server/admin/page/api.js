// What the page asks the server, and who it says it is. The token lives in this tab alone.

const KEPT = "tidegate.token";
const RETRY_MS = 2000;

export class Refused extends Error {
  constructor(status, reason, message) {
    super(message);
    this.status = status;
    this.reason = reason;
  }
}

export const token = {
  get: () => sessionStorage.getItem(KEPT) ?? "",
  set: (text) => sessionStorage.setItem(KEPT, text),
  forget: () => sessionStorage.removeItem(KEPT),
};

function headers() {
  return token.get() ? { authorization: `Bearer ${token.get()}` } : {};
}

async function refusal(response) {
  let told = {};
  try {
    told = (await response.json()).error ?? {};
  } catch {
    // A proxy's page, not ours: the status says enough.
  }
  return new Refused(response.status, told.reason ?? "", told.message ?? `the server answered ${response.status}`);
}

/** The answer to a GET, as data; throws Refused, or TypeError when nobody answers. */
export async function get(path) {
  const response = await fetch(path, { headers: headers(), cache: "no-store" });
  if (!response.ok) throw await refusal(response);
  return response.json();
}

/** Call `heard(kind, data)` with each event, for ever; `connected` whenever the stream has begun anew. */
export async function follow(path, heard, connected) {
  for (;;) {
    try {
      const response = await fetch(path, { headers: headers(), cache: "no-store" });
      if (!response.ok) throw await refusal(response);
      connected?.();
      await read(response.body, heard);
    } catch (fault) {
      if (fault instanceof Refused && [401, 403].includes(fault.status)) return;
    }
    await new Promise((done) => setTimeout(done, RETRY_MS));
  }
}

async function read(body, heard) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const fields = Object.fromEntries(part.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
      if (fields.data) heard(fields.event, JSON.parse(fields.data));
    }
  }
}
