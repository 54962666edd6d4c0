import { type DescMessage, fromBinary, type MessageShape } from "@bufbuild/protobuf";
import { type Any, anyUnpack, type Duration } from "@bufbuild/protobuf/wkt";
import { type Metadata, status } from "@grpc/grpc-js";

import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from "../gen/google/rpc/error_details_pb.js";
import { StatusSchema } from "../gen/google/rpc/status_pb.js";
import { type ItemError, type Refusal, RefusalReason } from "../gen/tidegate/v1/types_pb.js";

const DOMAIN = "tidegate";
const DETAILS = "grpc-status-details-bin";

/** One fault of a rejected request. */
export interface FieldViolation {
  /** Its path: `requests[3].worker_id`. */
  field: string;
  /** The fault in plain words. */
  description: string;
}

interface Known {
  reason?: string;
  metadata?: Record<string, string>;
  retryDelayMs?: number;
  violations?: FieldViolation[];
}

/**
 * A call that got a gRPC status instead of an answer. A "no" by policy is an answer; this says that no decision was
 * possible. In every case: do not forward the work.
 */
export class TidegateError extends Error {
  override readonly name = "TidegateError";
  /** The `ErrorReason` without its prefix; empty when the status did not come from a Tidegate server. */
  readonly reason: string;
  /** What was asked for: `{ model: "managed/rutine" }`. */
  readonly metadata: Readonly<Record<string, string>>;
  /** How long the server asks to wait; undefined when it does not say. */
  readonly retryDelayMs: number | undefined;
  /** The faults of an INVALID_ARGUMENT, field by field. */
  readonly violations: readonly FieldViolation[];

  constructor(
    /** The gRPC status. */
    readonly code: status,
    /** One sentence for people. */
    readonly detail: string,
    known: Known = {},
  ) {
    const reason = known.reason ? ` (${known.reason})` : "";
    const faults = (known.violations ?? []).map((fault) => `; ${fault.field}: ${fault.description}`).join("");
    super(`${status[code] ?? code}${reason}: ${detail}${faults}`);
    this.reason = known.reason ?? "";
    this.metadata = known.metadata ?? {};
    this.retryDelayMs = known.retryDelayMs;
    this.violations = known.violations ?? [];
  }

  /** Turn whatever a call threw into a TidegateError, with all that its details say. */
  static from(error: unknown): TidegateError {
    if (error instanceof TidegateError) return error;
    if (!isServiceError(error)) {
      const text = error instanceof Error ? error.message : String(error);
      return new TidegateError(status.UNKNOWN, text);
    }
    const code = error.code === status.OK ? status.UNKNOWN : error.code; // OK that failed is still no answer
    return new TidegateError(code, error.details || (status[code] ?? ""), detailsOf(error.metadata));
  }

  /** The error of one request of a batch; undefined stands for a result that is missing or empty. */
  static ofItem(item: ItemError | undefined): TidegateError {
    if (!item) return new TidegateError(status.INTERNAL, "the server gave no result for this request");
    const code = item.code === status.OK ? status.UNKNOWN : item.code; // OK that failed is still no answer
    return new TidegateError(code, item.message, { reason: item.reason });
  }
}

/** The flow guard said no: the agent must not be invoked. */
export class HopRefused extends Error {
  override readonly name = "HopRefused";

  constructor(
    /** Why; undefined where the answer granted nothing and gave no reason. */
    readonly refusal: Refusal | undefined,
  ) {
    super(refusal ? sentence(refusal) : "the server's answer grants no hop");
  }
}

/** A refusal in one sentence. */
export function sentence(refusal: Refusal): string {
  const reason = RefusalReason[refusal.reason] ?? String(refusal.reason);
  return refusal.message ? `${reason}: ${refusal.message}` : reason;
}

/** A duration in milliseconds. */
export function milliseconds(duration: Duration): number {
  return Number(duration.seconds) * 1000 + duration.nanos / 1e6;
}

function detailsOf(metadata: Metadata | undefined): Known {
  const encoded = metadata?.get(DETAILS)[0];
  if (!(encoded instanceof Uint8Array)) return {};
  let details: Any[];
  try {
    details = fromBinary(StatusSchema, encoded).details;
  } catch {
    return {}; // details that nobody can read are no reason to lose the status
  }
  const info = unpacked(details, ErrorInfoSchema);
  const retry = unpacked(details, RetryInfoSchema)?.retryDelay;
  const bad = unpacked(details, BadRequestSchema);
  return {
    ...(info?.domain === DOMAIN && { reason: info.reason, metadata: info.metadata }),
    ...(retry && { retryDelayMs: milliseconds(retry) }),
    ...(bad && { violations: bad.fieldViolations.map(({ field, description }) => ({ field, description })) }),
  };
}

function unpacked<Desc extends DescMessage>(details: Any[], schema: Desc): MessageShape<Desc> | undefined {
  for (const detail of details) {
    try {
      const found = anyUnpack(detail, schema);
      if (found) return found;
    } catch {
      continue;
    }
  }
  return undefined;
}

function isServiceError(error: unknown): error is { code: status; details: string; metadata?: Metadata } {
  return error instanceof Error && "code" in error && typeof error.code === "number" && "details" in error;
}
