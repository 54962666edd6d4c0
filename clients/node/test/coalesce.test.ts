import assert from "node:assert/strict";
import { EventEmitter, once } from "node:events";
import { after, before, beforeEach, test } from "node:test";

import { create, fromBinary, type MessageInitShape, type MessageShape, toBinary } from "@bufbuild/protobuf";
import { type sendUnaryData, Server, ServerCredentials, type ServerUnaryCall, status } from "@grpc/grpc-js";

import { Client, type ClientOptions, type Decision, TidegateError } from "../src/index.js";
import {
  AdmissionService,
  type AdmitBatchRequest,
  type AdmitBatchResponse,
  AdmitBatchResponseSchema,
  type AdmitRequest,
  AdmitRequestSchema,
  type AdmitResponse,
  AdmitResponseSchema,
  Verdict,
} from "../src/v1.js";

process.env["TIDEGATE_TOKEN_FILE"] = "";

const HOUR = 3_600_000;

type Call<I, O> = [ServerUnaryCall<I, O>, sendUnaryData<O>];

/** Admits everybody. Workers named "bad" are errors; a batch with one named "slow" waits until `go` is told. */
const station = {
  batches: [] as string[][],
  alone: [] as string[],
  hopIds: [] as string[],
  /** So many batches fail with `failure`. */
  failures: 0,
  failure: status.UNAVAILABLE,
  /** Batches are answered with no results. */
  short: false,
  /** Until the deadline of the last batch. */
  leftMs: 0,
  events: new EventEmitter(),

  reset(): void {
    Object.assign(this, { batches: [], alone: [], hopIds: [], failures: 0, short: false, events: new EventEmitter() });
  },

  admit(...[call, callback]: Call<AdmitRequest, AdmitResponse>): void {
    const { workerId } = call.request;
    this.alone.push(workerId);
    this.hopIds.push(hopId(call.request));
    if (workerId.startsWith("bad")) callback({ code: status.INVALID_ARGUMENT, details: "told alone" });
    else callback(null, create(AdmitResponseSchema, admitted(call.request)));
  },

  async admitBatch(...[call, callback]: Call<AdmitBatchRequest, AdmitBatchResponse>): Promise<void> {
    const { requests } = call.request;
    this.batches.push(requests.map((request) => request.workerId));
    this.hopIds.push(...requests.map(hopId));
    this.leftMs = Number(call.getDeadline()) - Date.now();
    if (this.batches.length <= this.failures) return callback({ code: this.failure, details: "told to the batch" });
    if (requests.some((request) => request.workerId.startsWith("slow"))) {
      call.on("cancelled", () => this.events.emit("cancelled"));
      const go = once(this.events, "go");
      this.events.emit("slow", requests.length);
      await go;
    }
    const results = this.short ? [] : requests.map((request) => ({ result: result(request) }));
    callback(null, create(AdmitBatchResponseSchema, { results }));
  },
};

function hopId(request: AdmitRequest): string {
  return request.flowContext.case === "hop" ? request.flowContext.value.requestId : "";
}

function admitted(request: AdmitRequest): MessageInitShape<typeof AdmitResponseSchema> {
  const binding = { provider: "qwen", model: "qwen-next" };
  const hop = request.flowContext.case === "hop" && { hop: { hopId: "1" } };
  return { verdict: Verdict.ADMITTED, decisionId: `of ${request.workerId}`, binding, ...hop };
}

function result(request: AdmitRequest) {
  if (request.workerId.startsWith("bad")) {
    return { case: "error" as const, value: { code: 3, reason: "INVALID_REQUEST", message: "told in the batch" } };
  }
  return { case: "response" as const, value: admitted(request) };
}

const server = new Server();
const { admit, admitBatch } = AdmissionService.method;
for (const method of [admit, admitBatch]) {
  const definition = {
    path: `/${method.parent.typeName}/${method.name}`,
    requestStream: false,
    responseStream: false,
    requestSerialize: (value: MessageShape<typeof method.input>) => Buffer.from(toBinary(method.input, value)),
    requestDeserialize: (bytes: Buffer) => fromBinary(method.input, bytes),
    responseSerialize: (value: MessageShape<typeof method.output>) => Buffer.from(toBinary(method.output, value)),
    responseDeserialize: (bytes: Buffer) => fromBinary(method.output, bytes),
  };
  const handler = method === admit ? station.admit.bind(station) : station.admitBatch.bind(station);
  server.addService({ [method.name]: definition }, { [method.name]: handler } as never);
}

let target: string;
const clients: Client[] = [];

function opened(options: ClientOptions = {}): Client {
  const client = new Client({ target, coalesce: true, ...options });
  clients.push(client);
  return client;
}

function asking(workerId: string, more: MessageInitShape<typeof AdmitRequestSchema> = {}) {
  return { model: "managed/routine", workerId, requestBytes: 1n, ...more };
}

function errorOf(decision: Decision | undefined): TidegateError {
  assert.ok(decision && !decision.forward && decision.error instanceof TidegateError);
  return decision.error;
}

/** When the server holds a batch back. */
const slow = () => once(station.events, "slow") as Promise<[number]>;

before(async () => {
  const port = await new Promise<number>((resolve, reject) =>
    server.bindAsync("127.0.0.1:0", ServerCredentials.createInsecure(), (error, port) => (error ? reject(error) : resolve(port))),
  );
  target = `127.0.0.1:${port}`;
});
beforeEach(() => station.reset());
after(() => {
  for (const client of clients) client.close();
  server.forceShutdown();
});

test("what is asked at once leaves as one batch, and each gets its own answer", async () => {
  const client = opened();
  const workers = Array.from({ length: 100 }, (_, n) => `w${n}`);
  const decisions = await Promise.all(workers.map((worker) => client.mayForward(asking(worker))));
  const ids = decisions.map((decision) => decision.forward && decision.response.decisionId);
  assert.deepEqual(ids, workers.map((worker) => `of ${worker}`));
  assert.deepEqual([station.batches, station.alone], [[workers], []]);
});

test("no batch has more than a server takes", async () => {
  const client = opened();
  await Promise.all(Array.from({ length: 513 }, (_, n) => client.admit(asking(`w${n}`))));
  assert.deepEqual(station.batches.map((batch) => batch.length), [256, 256, 1]);
});

test("an error is that request's alone, and told in full", async () => {
  const client = opened();
  const [good, bad, unspeakable, other] = await Promise.all([
    client.mayForward(asking("good")),
    client.mayForward(asking("bad")),
    client.mayForward(asking("unspeakable", { requestBytes: 2n ** 80n })),
    client.mayForward(asking("other")),
  ]);
  assert.ok(good?.forward && other?.forward);
  assert.deepEqual([errorOf(bad).code, errorOf(bad).detail], [status.INVALID_ARGUMENT, "told alone"]);
  assert.ok(errorOf(unspeakable));
  assert.deepEqual([station.batches, station.alone], [[["good", "bad", "other"]], ["bad"]]);
});

const troubles = { status: { failures: 1, failure: status.INTERNAL }, "too few results": { short: true } };
for (const [name, trouble] of Object.entries(troubles)) {
  test(`a batch that failed is asked one by one: ${name}`, async () => {
    Object.assign(station, trouble);
    const hop = { case: "hop" as const, value: { targetAgent: "coder" } };
    const decision = await opened().mayForward(asking("a", { flowContext: hop }));
    assert.ok(decision.forward && decision.hop);
    assert.deepEqual([station.batches, station.alone], [[["a"]], ["a"]]);
    assert.ok(station.hopIds[0]);
    assert.deepEqual([station.hopIds.length, new Set(station.hopIds).size], [2, 1]);
  });
}

test("a batch is repeated as one", async () => {
  Object.assign(station, { failures: 2, failure: status.UNAVAILABLE });
  const client = opened();
  const decisions = await Promise.all([client.mayForward(asking("a")), client.mayForward(asking("b"))]);
  assert.ok(decisions.every((decision) => decision.forward));
  assert.deepEqual([station.batches.length, station.alone], [3, []]);
});

test("a deadline is its own call's", async () => {
  const client = opened({ timeoutMs: HOUR });
  const held = slow();
  const patient = client.mayForward(asking("slow"));
  const hasty = client.mayForward(asking("hasty"), { timeoutMs: 50 });
  assert.equal(errorOf(await hasty).code, status.DEADLINE_EXCEEDED); // while the batch is still out
  assert.deepEqual(await held, [2]);
  assert.ok(station.leftMs > HOUR / 2, "the batch has as long as its most patient rider");
  station.events.emit("go");
  assert.ok((await patient).forward);
  assert.equal(station.batches.length, 1);
});

test("who is cancelled leaves the others to their answers", async () => {
  const client = opened();
  const controller = new AbortController();
  const held = slow();
  const gone = client.mayForward(asking("gone"), { signal: controller.signal });
  const stays = client.mayForward(asking("slow"));
  await held;
  controller.abort();
  assert.equal(errorOf(await gone).code, status.CANCELLED); // while the batch is still out
  station.events.emit("go");
  assert.ok((await stays).forward);
});

test("who is cancelled before the departure does not ride", async () => {
  const client = opened();
  const controller = new AbortController();
  const gone = client.mayForward(asking("gone"), { signal: controller.signal });
  const early = client.mayForward(asking("early"), { signal: AbortSignal.abort() });
  const stays = client.mayForward(asking("stays"));
  controller.abort();
  for (const decision of await Promise.all([gone, early])) assert.equal(errorOf(decision).code, status.CANCELLED);
  assert.ok((await stays).forward);
  assert.deepEqual([station.batches, station.alone], [[["stays"]], []]);
});

test("a batch that nobody waits for is cancelled", { timeout: 9_000 }, async () => {
  const client = opened({ timeoutMs: HOUR });
  const controller = new AbortController();
  const [held, cancelled] = [slow(), once(station.events, "cancelled")];
  const asked = ["slow", "too"].map((worker) => client.mayForward(asking(worker), { signal: controller.signal }));
  await held;
  controller.abort();
  await cancelled;
  for (const decision of await Promise.all(asked)) assert.equal(errorOf(decision).code, status.CANCELLED);
});

test("a bound worker's request does not wait for a new worker's", async () => {
  const client = opened();
  await client.admit(asking("bound"));
  const held = slow();
  const waiting = client.mayForward(asking("slow"));
  const bound = client.mayForward(asking("bound"));
  await held;
  assert.ok((await bound).forward); // while the other is still out
  station.events.emit("go");
  assert.ok((await waiting).forward);
});

test("a closed client leaves nobody waiting", async () => {
  const client = opened({ timeoutMs: 500 });
  const held = slow();
  const asked = client.mayForward(asking("slow"));
  await held;
  client.close();
  assert.equal((await asked).forward, false);
});

test("without the option nothing rides", async () => {
  const client = opened({ coalesce: false });
  await Promise.all([client.admit(asking("a")), client.admit(asking("b"))]);
  assert.deepEqual([station.batches.length, station.alone.length], [0, 2]);
});

test("mayForwardBatch has a decision for each request", async () => {
  const requests = ["a", "bad", "unspeakable", "dry", "b"].map((worker) => asking(worker));
  Object.assign(requests[2]!, { requestBytes: 2n ** 80n });
  Object.assign(requests[3]!, { dryRun: true });
  const decisions = await opened({ coalesce: false }).mayForwardBatch(requests);
  assert.deepEqual(decisions.map(({ forward }) => forward), [true, false, false, false, true]);
  const { code, reason } = errorOf(decisions[1]);
  assert.deepEqual([code, reason], [status.INVALID_ARGUMENT, "INVALID_REQUEST"]);
  assert.ok(!decisions[1]!.forward && decisions[1]!.httpAnswer.status === 400);
  assert.deepEqual(station.batches, [["a", "bad", "dry", "b"]]);
  assert.deepEqual(await opened().mayForwardBatch([]), []);
});

test("mayForwardBatch fails closed", async () => {
  const client = opened({ coalesce: false });
  const requests = [asking("a"), asking("b")];
  station.failures = 1;
  station.failure = status.PERMISSION_DENIED;
  const refused = await client.mayForwardBatch(requests);
  station.short = true;
  const short = await client.mayForwardBatch(requests);
  const cancelled = await client.mayForwardBatch(requests, { signal: AbortSignal.abort() });
  const codes = [refused, short, cancelled].map((decisions) => decisions.map((decision) => errorOf(decision).code));
  assert.deepEqual(codes, [status.PERMISSION_DENIED, status.INTERNAL, status.CANCELLED].map((code) => [code, code]));
});
