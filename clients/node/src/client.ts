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

  constructor(options: ClientOptions = {}) {
    const target = options.target || process.env["TIDEGATE_SERVER"] || DEFAULT_TARGET;
    this.#timeoutMs = options.timeoutMs ?? 10_000;
    this.#token = findToken(target, options.tokenFile, options.tls, options.insecure ?? false);
    this.#grpc = new GrpcClient(target, channelCredentials(options.tls), channelOptions(target, options.tls));
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
      const response = await this.#admit(message, options);
      const flaw = flawOf(message, response);
      if (flaw) return new NotForwarded(flaw, response);
      const hop = response.hop && new Hop(this, response.hop);
      return new Admitted(response, response.binding!, hop);
    } catch (error) {
      return new NotForwarded(TidegateError.from(error));
    }
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

  #admit(message: AdmitRequest, options?: CallOptions): Promise<AdmitResponse> {
    if (message.flowContext.case === "hop") identified(message.flowContext.value);
    return this.call(AdmissionService.method.admit, message, options);
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
