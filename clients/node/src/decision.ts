import type { ServerResponse } from "node:http";

import type { AdmitRequest, AdmitResponse } from "../gen/tidegate/v1/admission_pb.js";
import { type Binding, type Refusal, Verdict } from "../gen/tidegate/v1/types_pb.js";
import { milliseconds, sentence, TidegateError } from "./errors.js";
import type { Hop } from "./hop.js";
import { type HttpAnswer, httpAnswerTo, respond } from "./http.js";

/** Look at `forward`: the compiler then knows which of the two it is. */
export type Decision = Admitted | NotForwarded;

/** The work may be forwarded, to the binding and nowhere else. */
export class Admitted {
  readonly forward = true;

  constructor(
    readonly response: AdmitResponse,
    /** Where the work goes. */
    readonly binding: Binding,
    /** The hop that was entered with the admission. Exit it when the work is done. */
    readonly hop: Hop | undefined,
  ) {}

  /** For the gateway's response and for the upstream request: `x-gateway-upstream`, `x-session-id`, … */
  get headers(): Readonly<Record<string, string>> {
    return this.response.headers;
  }
}

/** The work must not be forwarded: a refusal, an error, or an answer that gives no permission. */
export class NotForwarded {
  readonly forward = false;

  constructor(
    /** Why not: a TidegateError when no decision was possible. */
    readonly error: Error,
    /** The answer; undefined when there was none. */
    readonly response?: AdmitResponse,
  ) {}

  /** The policy's "no"; undefined when there was no decision at all. */
  get refusal(): Refusal | undefined {
    return this.response?.verdict === Verdict.REFUSED ? this.response.refusal : undefined;
  }

  /** When asking again may help; undefined when nothing known will change. */
  get retryDelayMs(): number | undefined {
    if (this.error instanceof TidegateError) return this.error.retryDelayMs;
    return this.refusal?.retryDelay && milliseconds(this.refusal.retryDelay);
  }

  /** What the gateway's own caller gets: an OpenAI-style error that common SDKs retry only where that helps. */
  get httpAnswer(): HttpAnswer {
    return httpAnswerTo(this.refusal ?? this.error);
  }

  /** Answer the gateway's own caller. */
  respond(response: ServerResponse): void {
    respond(response, this.httpAnswer);
  }
}

/** Why an answer gives no permission to forward; undefined when it does. */
export function flawOf(request: AdmitRequest, response: AdmitResponse): Error | undefined {
  switch (response.verdict) {
    case Verdict.ADMITTED:
    case Verdict.BYPASSED:
      break;
    case Verdict.REFUSED:
      return new Error(response.refusal ? sentence(response.refusal) : "refused");
    default:
      return new Error(`verdict ${response.verdict} is no permission to forward`);
  }
  if (request.dryRun) return new Error("a dry run is no permission to forward");
  if (!response.binding?.provider || !response.binding.model) {
    return new Error("the answer does not say where to forward");
  }
  if (request.flowContext.case === "hop" && !response.hop?.hopId) {
    return new Error("the answer does not hold the hop that was asked for");
  }
  return undefined;
}
