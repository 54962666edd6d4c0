import { randomUUID } from "node:crypto";

import {
  create,
  type DescMessage,
  type DescMethodUnary,
  fromBinary,
  type MessageInitShape,
  type MessageShape,
  toBinary,
} from "@bufbuild/protobuf";
import { Client as GrpcClient, Metadata, status } from "@grpc/grpc-js";

import {
  AdmissionService,
  type AdmitRequest,
  AdmitRequestSchema,
  type AdmitResponse,
} from "../gen/tidegate/v1/admission_pb.js";
import {
  type EnterHopRequest,
  EnterHopRequestSchema,
  FlowService,
} from "../gen/tidegate/v1/flow_pb.js";
import { Verdict } from "../gen/tidegate/v1/types_pb.js";
import { Coalescer } from "./coalesce.js";
import { channelCredentials, channelOptions, DEFAULT_TARGET, findToken, type Tls, type TokenFile } from "./connection.js";
import { Admitted, type Decision, flawOf, NotForwarded } from "./decision.js";
import { HopRefused, TidegateError } from "./errors.js";
import { Hop } from "./hop.js";

/** How a client finds its server and shows who it is. */
export interface ClientOptions {
  /** `host:port` or `unix:/path`; left out: TIDEGATE_SERVER, else 127.0.0.1:50051. */
  target?: string;
  /** Left out: in clear, for a server on this machine. */
  tls?: Tls;
  /** File of the bearer token; see the README for where it is looked for. */
  tokenFile?: string;
  /** Allow a token in clear to another machine, over a network that is itself trusted. */
  insecure?: boolean;
  /** Deadline of each call, its retries and the server's cold wait (2.5 s by default) included. 10 s. */
  timeoutMs?: number;
  /**
   * Let concurrent calls of mayForward and admit ride together in AdmitBatch, for a busy gateway: what is asked in one
   * turn of the event loop leaves at its end, at most 256 in a batch, and each call keeps its own deadline, cancellation
   * and error.
   */
  coalesce?: boolean;
}

/** What one call may say for itself. */
export interface CallOptions {
  /** Instead of the client's. */
  timeoutMs?: number;
  /** Ends the call. */
  signal?: AbortSignal;
}

/** Speaks to one server, over one connection that is opened by the first call. */
export class Client {
  readonly #grpc: GrpcClient;
  readonly #token: TokenFile | undefined;
  readonly #timeoutMs: number;
  readonly #coalescer: Coalescer | undefined;

  constructor(options: ClientOptions = {}) {
    const target = options.target || process.env["TIDEGATE_SERVER"] || DEFAULT_TARGET;
    this.#timeoutMs = options.timeoutMs ?? 10_000;
    this.#token = findToken(target, options.tokenFile, options.tls, options.insecure ?? false);
    this.#grpc = new GrpcClient(target, channelCredentials(options.tls), channelOptions(target, options.tls));
    if (options.coalesce) {
      this.#coalescer = new Coalescer((batch, call) => this.call(AdmissionService.method.admitBatch, batch, call));
    }
  }

  /** End the connection. */
  close(): void {
    this.#grpc.close();
  }

  /**
   * Tell whether the work may be forwarded, and where. It never throws and never rejects: an error, a refusal and an
   * answer that nobody understands are all decisions that do not forward.
   */
  async mayForward(request: MessageInitShape<typeof AdmitRequestSchema>, options?: CallOptions): Promise<Decision> {
    try {
      const message = create(AdmitRequestSchema, request);
      return this.#decided(message, await this.#admit(message, options));
    } catch (error) {
      return new NotForwarded(TidegateError.from(error));
    }
  }

  /**
   * `mayForward` for up to 256 requests in one call: one decision for each request, in the same order, whatever happens.
   * An error of one is that one's alone. A gateway that serves its callers one by one has no use for it: see
   * `ClientOptions.coalesce`.
   */
  async mayForwardBatch(
    requests: readonly MessageInitShape<typeof AdmitRequestSchema>[],
    options?: CallOptions,
  ): Promise<Decision[]> {
    const decisions: Decision[] = requests.map(() => new NotForwarded(TidegateError.ofItem(undefined)));
    const asked: { message: AdmitRequest; place: number }[] = [];
    requests.forEach((request, place) => {
      try {
        const message = identifiedAdmission(create(AdmitRequestSchema, request));
        toBinary(AdmitRequestSchema, message); // what cannot be encoded would be the end of the whole batch
        asked.push({ message, place });
      } catch (error) {
        decisions[place] = new NotForwarded(TidegateError.from(error));
      }
    });
    if (asked.length === 0) return decisions;
    const batch = { requests: asked.map(({ message }) => message) };
    try {
      const { results } = await this.call(AdmissionService.method.admitBatch, batch, options);
      asked.forEach(({ message, place }, i) => {
        const result = results[i]?.result;
        decisions[place] =
          result?.case === "response"
            ? this.#decided(message, result.value)
            : new NotForwarded(TidegateError.ofItem(result?.value));
      });
    } catch (error) {
      for (const { place } of asked) decisions[place] = new NotForwarded(TidegateError.from(error));
    }
    return decisions;
  }

  /** Ask whether this work may start. The answer may be a refusal; rejects with a TidegateError when there was none. */
  async admit(request: MessageInitShape<typeof AdmitRequestSchema>, options?: CallOptions): Promise<AdmitResponse> {
    return this.#admit(create(AdmitRequestSchema, request), options);
  }

  /**
   * Ask whether an agent may be invoked now, and charge the hop. Rejects with a HopRefused by policy, and a TidegateError
   * when no decision was possible: the agent must not be invoked then.
   */
  async enterHop(request: MessageInitShape<typeof EnterHopRequestSchema>, options?: CallOptions): Promise<Hop> {
    const message = identified(create(EnterHopRequestSchema, request));
    const response = await this.call(FlowService.method.enterHop, message, options);
    if (response.verdict !== Verdict.ADMITTED || !response.grant?.hopId) throw new HopRefused(response.refusal);
    return new Hop(this, response.grant);
  }

  /**
   * Make one unary call of any service with this client's identity, deadline and retries. A hop or a record of tokens
   * that you send this way should have a `requestId`, for UNAVAILABLE is repeated.
   */
  async call<Input extends DescMessage, Output extends DescMessage>(
    method: DescMethodUnary<Input, Output>,
    request: MessageInitShape<Input>,
    options: CallOptions = {},
  ): Promise<MessageShape<Output>> {
    if (options.signal?.aborted) throw new TidegateError(status.CANCELLED, "cancelled before it was sent");
    const message = create(method.input, request);
    const metadata = this.#token?.metadata() ?? new Metadata();
    const deadline = Date.now() + (options.timeoutMs ?? this.#timeoutMs);
    return new Promise((resolve, reject) => {
      const call = this.#grpc.makeUnaryRequest<MessageShape<Input>, MessageShape<Output>>(
        `/${method.parent.typeName}/${method.name}`,
        (input) => Buffer.from(toBinary(method.input, input)),
        (bytes) => fromBinary(method.output, bytes),
        message,
        metadata,
        { deadline },
        (error, response) => {
          options.signal?.removeEventListener("abort", cancel);
          if (response && !error) resolve(response);
          else reject(TidegateError.from(error ?? new Error("no answer")));
        },
      );
      const cancel = () => call.cancel();
      options.signal?.addEventListener("abort", cancel, { once: true });
    });
  }

  async #admit(message: AdmitRequest, options: CallOptions = {}): Promise<AdmitResponse> {
    identifiedAdmission(message);
    if (!this.#coalescer) return this.call(AdmissionService.method.admit, message, options);
    const timeoutMs = options.timeoutMs ?? this.#timeoutMs;
    const deadline = Date.now() + timeoutMs;
    const response = await this.#coalescer.admit(message, timeoutMs, options.signal);
    if (response) return response;
    return this.call(AdmissionService.method.admit, message, { ...options, timeoutMs: deadline - Date.now() });
  }

  #decided(request: AdmitRequest, response: AdmitResponse): Decision {
    const flaw = flawOf(request, response);
    if (flaw) return new NotForwarded(flaw, response);
    return new Admitted(response, response.binding!, response.hop && new Hop(this, response.hop));
  }
}

/** The value of `requestBytes`: the exact size in bytes of the caller's serialized request. */
export function sizeOf(body: string | Uint8Array): bigint {
  return BigInt(Buffer.byteLength(body));
}

/** gRPC may repeat the call; by its id the hop is charged once all the same. */
function identified(hop: EnterHopRequest): EnterHopRequest {
  hop.requestId ||= randomUUID();
  return hop;
}

function identifiedAdmission(request: AdmitRequest): AdmitRequest {
  if (request.flowContext.case === "hop") identified(request.flowContext.value);
  return request;
}
