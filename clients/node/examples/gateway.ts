/**
 * An OpenAI-style proxy that asks Tidegate before every inference request, and forwards nothing that was not admitted. It
 * is an example to start from: this file for the proxy, body.ts for the bytes of the request.
 *
 *     npm run example -- --upstream qwen=http://127.0.0.1:8000 --agent planner=KEY@http://127.0.0.1:9001
 *
 * A request names its conversation in `x-session-id`. An agent shows its key; what it then calls belongs to the flow of
 * the trace context that it was given.
 */
import { createHash, timingSafeEqual } from "node:crypto";
import { createServer, type IncomingMessage, request as send, type ServerResponse } from "node:http";
import { pipeline } from "node:stream/promises";
import { parseArgs } from "node:util";

import { Client, httpAnswerTo, respond, sizeOf, traceFromHeaders } from "../src/index.js";
import { BadBody, JsonObject } from "./body.js";

const MAX_BODY = 8 << 20;
const WORKER = "x-session-id";
const HOP_BY_HOP = /^(connection|keep-alive|proxy-.*|te|trailer|transfer-encoding|upgrade|host|content-length)$/;

const { values } = parseArgs({
  options: {
    listen: { type: "string", default: "127.0.0.1:8080" },
    tidegate: { type: "string" },
    /** How long a decision may take, in ms: longer than the server's cold wait. */
    timeout: { type: "string", default: "3500" },
    /** PROVIDER=URL */
    upstream: { type: "string", multiple: true, default: [] },
    /** NAME=KEY@URL */
    agent: { type: "string", multiple: true, default: [] },
  },
});
const timeoutMs = Number(values.timeout);
const tidegate = new Client({ timeoutMs, ...(values.tidegate && { target: values.tidegate }) });
const upstreams = new Map(values.upstream.map((text) => split(text, "=")).map(([name, url]) => [name, new URL(url)]));
const agents = new Map(
  values.agent.map((text) => {
    const [name, rest] = split(text, "=");
    const [key, url] = split(rest, "@");
    return [name, { key, url: new URL(url) }];
  }),
);

/** A request that the gateway itself answers with an error. */
class Failure extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

/** Admit an inference request, and forward it to the binding of the answer. */
async function infer(incoming: IncomingMessage, outgoing: ServerResponse): Promise<void> {
  const body = await bodyOf(incoming);
  const fields = new JsonObject(body);
  const agent = authenticated(incoming);
  const trace = traceFromHeaders(incoming.headers);
  const decision = await tidegate.mayForward({
    model: fields.text("model"),
    workerId: String(incoming.headers[WORKER] ?? ""),
    requestBytes: sizeOf(body),
    reasoningEffort: fields.text("reasoning_effort"),
    ...(agent && trace.traceparent && { flowContext: { case: "flow", value: { ...trace, agent } } }),
  });
  if (!decision.forward) {
    console.error(`not forwarded: ${decision.error.message}`);
    return decision.respond(outgoing);
  }
  const upstream = upstreams.get(decision.binding.provider);
  if (!upstream) throw new Failure(502, "upstream_not_configured", "The gateway does not know the provider's address.");
  const changed = fields.with({
    model: decision.binding.model,
    ...(decision.response.reasoningEffortMapped && { reasoning_effort: decision.response.reasoningEffort }),
  });
  await forward(incoming, outgoing, upstream, changed, decision.headers);
}

/** Enter a hop, call the agent with the hop's trace context, and exit whatever happens. */
async function callAgent(incoming: IncomingMessage, outgoing: ServerResponse, name: string): Promise<void> {
  const target = agents.get(name);
  if (!target) throw new Failure(404, "agent_not_found", "The gateway knows no such agent.");
  const body = await bodyOf(incoming);
  const caller = authenticated(incoming);
  let hop;
  try {
    hop = await tidegate.enterHop({ ...traceFromHeaders(incoming.headers), callerAgent: caller, targetAgent: name });
  } catch (error) {
    console.error(`agent not called: ${error}`);
    return respond(outgoing, httpAnswerTo(error));
  }
  let success = false;
  try {
    hop.inject(incoming.headers);
    success = (await forward(incoming, outgoing, target.url, body, {})) < 400;
  } finally {
    await hop.exit(0, success).catch(console.error); // the flow ends by its time at the latest
  }
}

/** Send a request on, and its answer back as it comes. */
async function forward(
  incoming: IncomingMessage,
  outgoing: ServerResponse,
  upstream: URL,
  body: Buffer,
  ours: Readonly<Record<string, string>>,
): Promise<number> {
  const theirs = Object.entries(incoming.headers).filter(([name]) => mayPass(name));
  const headers = { ...Object.fromEntries(theirs), ...ours, "content-length": body.length };
  const url = new URL(upstream.pathname.replace(/\/$/, "") + incoming.url!, upstream);
  const answer = await new Promise<IncomingMessage>((resolve, reject) => {
    const onward = send(url, { method: "POST", headers }, resolve).on("error", reject);
    outgoing.on("close", () => onward.destroy());
    onward.end(body);
  });
  const back = Object.entries(answer.headers).filter(([name]) => !HOP_BY_HOP.test(name) || name === "content-length");
  outgoing.writeHead(answer.statusCode!, { ...Object.fromEntries(back), ...ours });
  outgoing.flushHeaders();
  await pipeline(answer, outgoing);
  return answer.statusCode!;
}

/** What the caller says in our own headers never reaches an upstream, nor does its key: there goes the provider's own. */
function mayPass(name: string): boolean {
  return !HOP_BY_HOP.test(name) && !name.startsWith("x-gateway-") && name !== WORKER && name !== "authorization";
}

/** The agent whose key the caller showed; empty: it is no agent. */
function authenticated(incoming: IncomingMessage): string {
  const shown = digest(incoming.headers.authorization ?? "");
  for (const [name, { key }] of agents) if (timingSafeEqual(shown, digest(`Bearer ${key}`))) return name;
  return "";
}

function digest(text: string): Buffer {
  return createHash("sha256").update(text).digest();
}

async function bodyOf(incoming: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of incoming) {
    size += chunk.length;
    if (size > MAX_BODY) throw new Failure(413, "request_too_large", "The request has more than 8 MiB.");
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

function split(text: string, at: string): [string, string] {
  const place = text.indexOf(at);
  if (place < 1) throw new Error(`${text}: lacks ${at}`);
  return [text.slice(0, place), text.slice(place + 1)];
}

async function handle(incoming: IncomingMessage, outgoing: ServerResponse): Promise<void> {
  const { pathname } = new URL(incoming.url!, "http://gateway");
  const name = /^\/agents\/([^/]+)$/.exec(pathname)?.[1];
  if (incoming.method !== "POST") throw new Failure(405, "method_not_allowed", "Only POST.");
  if (/^\/v1\/(chat\/completions|responses)$/.test(pathname)) return infer(incoming, outgoing);
  if (name) return callAgent(incoming, outgoing, name);
  throw new Failure(404, "not_found", "There is no such path.");
}

function fail(outgoing: ServerResponse, error: unknown): void {
  if (outgoing.headersSent) return void outgoing.destroy();
  let answer = { status: 502, code: "upstream_failed", message: "The upstream did not answer." };
  if (error instanceof Failure) answer = { status: error.status, code: error.code, message: error.message };
  else if (error instanceof BadBody) answer = { status: 400, code: "invalid_json", message: error.message };
  else console.error(error);
  const { status, ...said } = answer;
  const type = status >= 500 ? "server_error" : "invalid_request_error";
  const body = JSON.stringify({ error: { ...said, type, param: null } });
  respond(outgoing, { status, headers: { "content-type": "application/json", "x-should-retry": "false" }, body });
}

const server = createServer((incoming, outgoing) => {
  handle(incoming, outgoing).catch((error: unknown) => fail(outgoing, error));
});
const [host, port] = split(values.listen, ":");
server.listen(Number(port), host, () => console.error(`the gateway listens on ${values.listen}`));
for (const signal of ["SIGTERM", "SIGINT"]) {
  process.once(signal, () => server.close(() => tidegate.close()));
}
