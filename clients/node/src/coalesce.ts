import { create, toBinary } from "@bufbuild/protobuf";
import { status } from "@grpc/grpc-js";

import {
  type AdmitBatchRequest,
  AdmitBatchRequestSchema,
  type AdmitBatchResponse,
  type AdmitRequest,
  AdmitRequestSchema,
  type AdmitResponse,
} from "../gen/tidegate/v1/admission_pb.js";
import { Verdict } from "../gen/tidegate/v1/types_pb.js";
import { TidegateError } from "./errors.js";

/** What the server takes in one AdmitBatch (§11 of the contract). */
const MOST_RIDERS = 256;

/** Bounds what is remembered of workers that were admitted before. */
const WORKERS_KNOWN = 65_536;

/** A longer one would fire at once. */
const LONGEST_TIMER = 2 ** 31 - 1;

/** AdmitBatch with a deadline. */
export type Send = (
  batch: AdmitBatchRequest,
  options: { timeoutMs: number; signal: AbortSignal },
) => Promise<AdmitBatchResponse>;

/**
 * Lets concurrent admissions ride together: one AdmitBatch in place of many Admits. What is asked in one turn of the
 * event loop leaves at its end, so that nothing waits for a timer.
 *
 * Whatever is not a decision is asked again alone, by a call of its own: so an error of one request is that request's
 * alone, with all that its status says and with the usual retries. Only where the server could not be reached at all,
 * retries included, all riders are told so.
 *
 * A batch is answered when its last item is, which may take a cold wait. So requests ride in lanes: apart by model,
 * those of workers that were admitted before apart from new ones, and those that enter a hop apart from the rest.
 */
export class Coalescer {
  readonly #send: Send;
  readonly #lanes = new Map<string, Rider[]>();
  readonly #admitted = new Set<string>();

  constructor(send: Send) {
    this.#send = send;
  }

  /**
   * The decision within `timeoutMs`; undefined where there was none, and the request has to be asked alone. Rejects as
   * soon as the deadline is over or the signal is given; when that is so for all riders of a batch, it is cancelled.
   */
  async admit(request: AdmitRequest, timeoutMs: number, signal?: AbortSignal): Promise<AdmitResponse | undefined> {
    toBinary(AdmitRequestSchema, request); // throws: what cannot be encoded would be the end of the whole batch
    const worker = JSON.stringify([request.model, request.tenant, request.workerId]);
    const rider = new Rider(request, timeoutMs, signal);
    this.#board(JSON.stringify([request.model, this.#admitted.has(worker), request.flowContext.case === "hop"]), rider);
    const response = await rider.answer;
    if (response?.verdict === Verdict.ADMITTED && !request.dryRun) this.#remember(worker);
    return response;
  }

  #board(key: string, rider: Rider): void {
    const waiting = this.#lanes.get(key);
    if (waiting) {
      waiting.push(rider);
      if (waiting.length >= MOST_RIDERS) this.#depart(key, waiting);
      return;
    }
    const first = [rider];
    this.#lanes.set(key, first);
    setImmediate(() => this.#depart(key, first));
  }

  #depart(key: string, waiting: Rider[]): void {
    if (this.#lanes.get(key) !== waiting) return; // it was full, and left before its time
    this.#lanes.delete(key);
    const riders = waiting.filter((rider) => !rider.isDone);
    if (riders.length > 0) void this.#ride(riders);
  }

  async #ride(riders: Rider[]): Promise<void> {
    const cancel = new AbortController();
    let aboard = riders.length;
    for (const rider of riders) {
      rider.left = () => {
        aboard -= 1;
        if (aboard === 0) cancel.abort();
      };
    }
    const batch = create(AdmitBatchRequestSchema, { requests: riders.map((rider) => rider.request) });
    const timeoutMs = Math.max(...riders.map((rider) => rider.deadline)) - Date.now();
    try {
      const { results } = await this.#send(batch, { timeoutMs, signal: cancel.signal });
      riders.forEach((rider, i) => {
        const result = results[i]?.result;
        rider.settle(result?.case === "response" ? result.value : undefined);
      });
    } catch (error) {
      const { code } = TidegateError.from(error);
      for (const rider of riders) {
        if (code === status.UNAVAILABLE) rider.fail(TidegateError.from(error));
        else rider.settle(undefined);
      }
    }
  }

  #remember(worker: string): void {
    if (this.#admitted.size >= WORKERS_KNOWN) this.#admitted.clear(); // they are known again after one ride each
    this.#admitted.add(worker);
  }
}

/** One request, and the answer that its caller waits for. */
class Rider {
  readonly answer: Promise<AdmitResponse | undefined>;
  /** In milliseconds, as Date.now. */
  readonly deadline: number;
  isDone = false;
  /** Called when the caller waits no longer, though there is no answer. */
  left: () => void = () => {};
  #resolve!: (response: AdmitResponse | undefined) => void;
  #reject!: (error: TidegateError) => void;
  readonly #alarm: NodeJS.Timeout;

  constructor(
    readonly request: AdmitRequest,
    timeoutMs: number,
    private readonly signal: AbortSignal | undefined,
  ) {
    this.deadline = Date.now() + timeoutMs;
    this.answer = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    this.#alarm = setTimeout(this.#expire, Math.min(timeoutMs, LONGEST_TIMER));
    signal?.addEventListener("abort", this.#cancel, { once: true });
    if (signal?.aborted) this.#cancel();
  }

  settle(response: AdmitResponse | undefined): void {
    if (this.#done()) this.#resolve(response);
  }

  fail(error: TidegateError): void {
    if (this.#done()) this.#reject(error);
  }

  /** Whether this is what ends it. */
  #done(): boolean {
    if (this.isDone) return false;
    this.isDone = true;
    clearTimeout(this.#alarm);
    this.signal?.removeEventListener("abort", this.#cancel);
    return true;
  }

  #leave(error: TidegateError): void {
    this.fail(error);
    this.left();
  }

  readonly #expire = () =>
    this.#leave(new TidegateError(status.DEADLINE_EXCEEDED, "the deadline ran out before the server answered"));
  readonly #cancel = () => this.#leave(new TidegateError(status.CANCELLED, "cancelled by its caller"));
}
