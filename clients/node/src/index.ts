/**
 * Client of Tidegate, the admission service that a gateway calls before inference.
 *
 *     const tidegate = new Client();  // TIDEGATE_SERVER, else 127.0.0.1:50051
 *     const decision = await tidegate.mayForward({ model, workerId, requestBytes: sizeOf(body) });
 *     if (!decision.forward) return decision.respond(response);
 *     await send(body, decision.binding, decision.headers);
 *
 * Whatever is not an answer of ADMITTED or BYPASSED means "do not forward", and `forward` says exactly that.
 */
export { Client, type CallOptions, type ClientOptions, sizeOf } from "./client.js";
export { type Tls, DEFAULT_TARGET } from "./connection.js";
export { Admitted, type Decision, NotForwarded } from "./decision.js";
export { type FieldViolation, HopRefused, TidegateError } from "./errors.js";
export { Hop } from "./hop.js";
export { type HttpAnswer, httpAnswerTo, respond } from "./http.js";
export { type HeaderBag, injectTrace, type TraceContext, traceFromHeaders } from "./trace.js";
