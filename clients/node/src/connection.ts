import { accessSync, constants, readFileSync, statSync } from "node:fs";

import { type ChannelCredentials, type ClientOptions, credentials, Metadata, status } from "@grpc/grpc-js";

import { TidegateError } from "./errors.js";

/** Where a server listens that was told nothing else. */
export const DEFAULT_TARGET = "127.0.0.1:50051";

const LOCAL_TOKEN = "state/local.token";

// UNAVAILABLE is repeated, and nothing else, within the deadline of the call. Every call may be repeated: the first pin
// of a worker is found again, and each hop and each record of tokens has an id by which it is charged once.
const SERVICE_CONFIG = JSON.stringify({
  loadBalancingConfig: [{ pick_first: {} }],
  methodConfig: [
    {
      name: [{ service: "tidegate.v1.AdmissionService" }, { service: "tidegate.v1.FlowService" }],
      retryPolicy: {
        maxAttempts: 5,
        initialBackoff: "0.1s",
        maxBackoff: "2s",
        backoffMultiplier: 2,
        retryableStatusCodes: ["UNAVAILABLE"],
      },
    },
  ],
});

/** TLS to the server; with `certificate` and `key` also mTLS. Paths of PEM files, read when the client is made. */
export interface Tls {
  /** Authority that signed the server's certificate; left out: those of the system. */
  ca?: string;
  certificate?: string;
  key?: string;
  /** Name in the server's certificate, where it is not the host of the target. */
  serverName?: string;
}

/** How a channel to the server is opened. */
export function channelOptions(target: string, tls: Tls | undefined): ClientOptions {
  return {
    // A dead server is noticed by a ping after 10 s of silence. The server accepts one every 5 s and cuts a client that
    // pings more often.
    "grpc.keepalive_time_ms": 10_000,
    "grpc.keepalive_timeout_ms": 8_000,
    "grpc.keepalive_permit_without_calls": 1,
    "grpc.service_config": SERVICE_CONFIG,
    "grpc.service_config_disable_resolution": 1, // ours, not one that a name server hands out
    // A server that restarts is found again at once, not after gRPC's two minutes.
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 1_000,
    ...(isLocal(target) && { "grpc.enable_http_proxy": 0 }),
    ...(tls?.serverName && { "grpc.ssl_target_name_override": tls.serverName }),
  };
}

/** How the connection is protected. */
export function channelCredentials(tls: Tls | undefined): ChannelCredentials {
  if (!tls) return credentials.createInsecure();
  if (!tls.certificate !== !tls.key) throw new Error("tls: certificate and key belong together, one is missing");
  const pem = (path: string | undefined) => (path ? readFileSync(path) : null);
  return credentials.createSsl(pem(tls.ca), pem(tls.key), pem(tls.certificate));
}

/** A bearer token in a file, read again when the file changes, so that a rotated token needs no restart. */
export class TokenFile {
  #seen = "";
  #token = "";

  constructor(readonly path: string) {}

  /** The metadata of one call. A file that cannot be read is an error, never "no token". */
  metadata(): Metadata {
    const metadata = new Metadata();
    metadata.set("authorization", `Bearer ${this.#read()}`);
    return metadata;
  }

  #read(): string {
    try {
      const { ino, mtimeMs, size } = statSync(this.path);
      const seen = `${ino} ${mtimeMs} ${size}`;
      if (seen !== this.#seen) {
        this.#token = tokenIn(readFileSync(this.path, "utf8"));
        this.#seen = seen;
      }
      return this.#token;
    } catch (error) {
      const text = error instanceof Error ? error.message : String(error);
      throw new TidegateError(status.UNAUTHENTICATED, `token file ${this.path}: ${text}`);
    }
  }
}

/**
 * Find the token: the named file, else the one that TIDEGATE_TOKEN_FILE names, else, for a server on this machine,
 * ./state/local.token where it can be read. A server on another machine is never shown a token that merely lies in the
 * working directory, and none in clear unless the network itself is trusted.
 */
export function findToken(
  target: string,
  named: string | undefined,
  tls: Tls | undefined,
  insecure: boolean,
): TokenFile | undefined {
  const path = named || process.env["TIDEGATE_TOKEN_FILE"];
  if (!path) return isLocal(target) && readable(LOCAL_TOKEN) ? new TokenFile(LOCAL_TOKEN) : undefined;
  if (!tls && !insecure && !isLocal(target)) {
    throw new Error(`${target}: a token needs TLS outside this machine (or insecure: true)`);
  }
  return new TokenFile(path);
}

/** Whether a target stays on this machine: a unix socket, localhost or a loopback address. */
export function isLocal(target: string): boolean {
  if (/^unix(-abstract)?:/.test(target)) return true;
  const host = target.slice(target.lastIndexOf("/") + 1).replace(/:\d+$/, "").replace(/^\[(.*)\]$/, "$1");
  return host === "localhost" || host === "::1" || /^127(\.\d{1,3}){3}$/.test(host);
}

function tokenIn(text: string): string {
  const token = text.trim();
  if (!/^[!-~]+$/.test(token)) throw new Error("holds no single token");
  return token;
}

function readable(path: string): boolean {
  try {
    accessSync(path, constants.R_OK);
    return true;
  } catch {
    return false;
  }
}
