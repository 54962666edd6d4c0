import type { ServerResponse } from "node:http";

import { status } from "@grpc/grpc-js";

import type { Refusal } from "../gen/tidegate/v1/types_pb.js";
import { HopRefused, milliseconds, TidegateError } from "./errors.js";

/**
 * What the gateway's own caller gets instead of an inference: an OpenAI-style error, whose status makes common SDKs
 * (which retry 408, 409, 429 and 5xx) retry only what is retryable.
 */
export interface HttpAnswer {
  status: number;
  headers: Record<string, string>;
  body: string;
}

/** The answer to a request that must not be forwarded, or to a hop that was not granted. */
export function httpAnswerTo(reason: unknown): HttpAnswer {
  if (reason instanceof HopRefused) return reason.refusal ? answerToRefusal(reason.refusal) : FAILED;
  if (reason instanceof TidegateError) return answerToError(reason);
  return reason instanceof Error ? FAILED : answerToRefusal(reason as Refusal);
}

/** Send the answer. */
export function respond(response: ServerResponse, { status, headers, body }: HttpAnswer): void {
  response.writeHead(status, { ...headers, "content-length": Buffer.byteLength(body) }).end(body);
}

function answerToRefusal(refusal: Refusal): HttpAnswer {
  const { httpStatus, retryable, retryDelay, code, message } = refusal;
  if (!(httpStatus >= 400 && httpStatus <= 599)) return FAILED;
  return answer(httpStatus, retryable, retryDelay && milliseconds(retryDelay), code, message);
}

/**
 * The caller is told only what a Tidegate server says about the request itself: whatever else went wrong is between the
 * gateway and its operator.
 */
function answerToError(error: TidegateError): HttpAnswer {
  const code = error.reason.toLowerCase();
  switch (error.code) {
    case status.INVALID_ARGUMENT:
      return code ? answer(400, false, undefined, code, error.detail) : FAILED;
    case status.NOT_FOUND:
      return code ? answer(404, false, undefined, code, error.detail) : FAILED;
    case status.UNAVAILABLE:
    case status.RESOURCE_EXHAUSTED:
    case status.DEADLINE_EXCEEDED: {
      const message = "No decision on this request was possible now; it was not forwarded.";
      return answer(503, true, error.retryDelayMs, "admission_unavailable", message);
    }
    default:
      return FAILED;
  }
}

const FAILED = answer(
  500,
  false,
  undefined,
  "admission_failed",
  "No decision on this request was possible; it was not forwarded.",
);

function answer(
  status: number,
  retryable: boolean,
  delayMs: number | undefined,
  code: string,
  message: string,
): HttpAnswer {
  const type = status === 429 ? "rate_limit_error" : status >= 500 ? "server_error" : "invalid_request_error";
  return {
    status,
    headers: {
      "content-type": "application/json",
      "x-should-retry": String(retryable),
      ...(delayMs && { "retry-after": String(Math.ceil(delayMs / 1000)) }),
    },
    body: JSON.stringify({ error: { message, type, param: null, code } }),
  };
}
