/**
 * Runs this client on behalf of the conformance suite (tests/conformance/README.md): reads one operation a line as JSON,
 * carries it out with the public functions of this package, and writes what came of it.
 */
import { createInterface } from "node:readline";

import { create, type DescMessage, fromJson, type JsonValue, type MessageShape, toJson } from "@bufbuild/protobuf";
import { status } from "@grpc/grpc-js";

import { Client, Hop, HopRefused, httpAnswerTo, injectTrace, TidegateError, traceFromHeaders } from "../src/index.js";
import * as v1 from "../src/v1.js";

type Pairs = [string, string][];

interface Operation {
  op: string;
  request?: JsonValue;
  timeout?: number;
  headers?: Pairs;
  trace?: { traceparent?: string; tracestate?: string };
  hop?: string;
  tokens?: number;
  success?: boolean;
}

const { TIDEGATE_CA: ca, TIDEGATE_CERTIFICATE: certificate, TIDEGATE_KEY: key, TIDEGATE_SERVER_NAME: serverName } = process.env;
const tls = ca && { ca, ...(certificate && key && { certificate, key }), ...(serverName && { serverName }) };
const client = new Client({ coalesce: Boolean(process.env["TIDEGATE_COALESCE"]), ...(tls && { tls }) });
const hops = new Map<string, Hop>();

async function run(o: Operation): Promise<object> {
  const options = o.timeout ? { timeoutMs: o.timeout * 1000 } : {};
  const headers = bag(o.headers);
  switch (o.op) {
    case "admit":
      return admit(o, options);
    case "pin":
      return answered(v1.PinResponseSchema, () =>
        client.call(v1.AdmissionService.method.pin, read(v1.PinRequestSchema, o), options),
      );
    case "trace":
      return { trace: traceFromHeaders(headers) };
    case "inject":
      injectTrace({ traceparent: "", tracestate: "", ...o.trace }, headers);
      return { headers: pairs(headers) };
    case "enterHop":
      return enterHop(o, options);
    case "recordTokens":
      return answered(v1.RecordTokensResponseSchema, () => hops.get(o.hop!)!.recordTokens(o.tokens ?? 0));
    case "exitHop":
      return answered(v1.ExitHopResponseSchema, () => hops.get(o.hop!)!.exit(o.tokens ?? 0, o.success ?? false));
    default:
      return { unknown: o.op };
  }
}

/** Places the request in the flow of the headers, where there are any, as a gateway does. */
async function admit(o: Operation, options: object): Promise<object> {
  const request = read(v1.AdmitRequestSchema, o);
  const trace = traceFromHeaders(bag(o.headers));
  if (request.flowContext.case === "flow" && !request.flowContext.value.traceparent && trace.traceparent) {
    const { agent } = request.flowContext.value;
    request.flowContext = { case: "flow", value: create(v1.FlowCheckSchema, { ...trace, agent }) };
  }
  const decision = await client.mayForward(request, options);
  const said = decision.response
    ? { response: toJson(v1.AdmitResponseSchema, decision.response) }
    : failure(decision.forward ? undefined : decision.error);
  if (!decision.forward) return { ...said, forward: false, http: http(decision.httpAnswer) };
  if (decision.hop) hops.set(decision.hop.grant.hopId, decision.hop);
  return { ...said, forward: true, binding: toJson(v1.BindingSchema, decision.binding) };
}

async function enterHop(o: Operation, options: object): Promise<object> {
  const headers = bag(o.headers);
  try {
    const request = Object.assign(read(v1.EnterHopRequestSchema, o), traceFromHeaders(headers));
    const hop = await client.enterHop(request, options);
    hop.inject(headers);
    hops.set(hop.grant.hopId, hop);
    return { granted: true, response: toJson(v1.HopGrantSchema, hop.grant), headers: pairs(headers) };
  } catch (error) {
    return { ...failure(error), granted: false, http: http(httpAnswerTo(error)) };
  }
}

async function answered<Desc extends DescMessage>(schema: Desc, call: () => Promise<MessageShape<Desc>>): Promise<object> {
  try {
    return { response: toJson(schema, await call()) };
  } catch (error) {
    return failure(error);
  }
}

function failure(error: unknown): object {
  if (error instanceof HopRefused) {
    return { refusal: error.refusal ? toJson(v1.RefusalSchema, error.refusal) : {} };
  }
  const { code, reason, violations } = TidegateError.from(error);
  return { error: { status: status[code], reason, fields: violations.map(({ field }) => field) } };
}

function http({ status, headers, body }: { status: number; headers: Record<string, string>; body: string }): object {
  return { status, headers: Object.entries(headers), body: JSON.parse(body) };
}

function read<Desc extends DescMessage>(schema: Desc, o: Operation): MessageShape<Desc> {
  return fromJson(schema, o.request ?? {});
}

function bag(found: Pairs = []): Record<string, string[]> {
  const headers: Record<string, string[]> = {};
  for (const [name, value] of found) (headers[name] ??= []).push(value);
  return headers;
}

function pairs(headers: Record<string, string | string[]>): Pairs {
  return Object.entries(headers).flatMap(([name, values]) => [values].flat().map((value): [string, string] => [name, value]));
}

for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await run(JSON.parse(line))));
}
client.close();
