/**
 * The W3C trace context of a request, exactly as it came: this package never mends, makes or drops one.
 *
 * It works beside OpenTelemetry and does not need it. To pass the current span on, let OpenTelemetry write its headers
 * first (`propagation.inject(context.active(), headers)`), then read them here: spans in between do not matter to the
 * flow guard, since tracestate travels unchanged.
 */
export interface TraceContext {
  traceparent: string;
  tracestate: string;
}

/** Headers of `node:http` and of plain objects, or of `fetch`. */
export type HeaderBag = Record<string, string | string[] | undefined> | Headers;

/**
 * Read the trace context of a request. Several tracestate headers are one list (W3C Trace Context §3.3.1); several
 * traceparent headers stay several, joined, and the server refuses them.
 */
export function traceFromHeaders(headers: HeaderBag): TraceContext {
  return { traceparent: joined(headers, "traceparent"), tracestate: joined(headers, "tracestate") };
}

/** Put the trace context on a request in the place of whatever was there, under any spelling. */
export function injectTrace(trace: TraceContext, headers: HeaderBag): void {
  for (const [name] of entries(headers)) {
    if (/^trace(parent|state)$/i.test(name)) remove(headers, name);
  }
  if (!trace.traceparent) return; // a tracestate without a traceparent means nothing
  set(headers, "traceparent", trace.traceparent);
  if (trace.tracestate) set(headers, "tracestate", trace.tracestate);
}

function joined(headers: HeaderBag, wanted: string): string {
  return entries(headers)
    .filter(([name]) => name.toLowerCase() === wanted)
    .flatMap(([, value]) => value ?? [])
    .join(",");
}

function entries(headers: HeaderBag): [string, string | string[] | undefined][] {
  return headers instanceof Headers ? [...headers] : Object.entries(headers);
}

function set(headers: HeaderBag, name: string, value: string): void {
  if (headers instanceof Headers) headers.set(name, value);
  else headers[name] = value;
}

function remove(headers: HeaderBag, name: string): void {
  if (headers instanceof Headers) headers.delete(name);
  else delete headers[name];
}
