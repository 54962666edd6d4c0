import { randomUUID } from "node:crypto";

import {
  type ExitHopResponse,
  FlowService,
  type HopGrant,
  type RecordTokensResponse,
} from "../gen/tidegate/v1/flow_pb.js";
import type { Client } from "./client.js";
import { type HeaderBag, injectTrace, type TraceContext } from "./trace.js";

/** One call into an agent that was granted. It exists only when the agent may be invoked. */
export class Hop {
  constructor(
    private readonly client: Client,
    /** What the server said: the chain, what the flow has left. */
    readonly grant: HopGrant,
  ) {}

  /** The trace context to pass to the agent. */
  get trace(): TraceContext {
    return { traceparent: this.grant.traceparent, tracestate: this.grant.tracestate };
  }

  /** Put the trace context on the request to the agent, in the place of whatever was there. */
  inject(headers: HeaderBag): void {
    injectTrace(this.trace, headers);
  }

  /** Add tokens that the agent has used. Stop when the answer says that the flow's tokens are exhausted. */
  recordTokens(tokens: number | bigint): Promise<RecordTokensResponse> {
    const requestId = randomUUID(); // a repeat of the call counts once
    return this.client.call(FlowService.method.recordTokens, { ...this.#place(tokens), requestId });
  }

  /** Close the hop and settle its reservation. A hop closes once: calling it again charges nothing. */
  exit(tokens: number | bigint, success: boolean): Promise<ExitHopResponse> {
    return this.client.call(FlowService.method.exitHop, { ...this.#place(tokens), success });
  }

  #place(tokens: number | bigint) {
    return { ...this.trace, hopId: this.grant.hopId, tokens: BigInt(tokens) };
  }
}
